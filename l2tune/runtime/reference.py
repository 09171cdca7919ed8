"""How far a correct product may be from the exact one, and how far a result is.

One formula, used by the gate, by the check after timing and by the tests, so that "correct" has one
meaning in the package. Nothing here launches a kernel of ours.
"""

import torch

_UNIT_ROUNDOFF = {
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
_HALF_SMALLEST = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}
_OVERFLOW = {torch.float16: 65520.0, torch.bfloat16: 3.3961775292304957e38}
"""Where rounding to the type first gives infinity: halfway past the largest finite value."""
_ACC_CONSTANT = 2.0
_ACC_EXTRA_TERMS = 16
_ACC_SMALLEST = {torch.float32: 2.0**-126, torch.float16: 2.0**-24}
"""What one rounding of a sum below its type's normal range may lose at most."""
_ACC_OVERFLOW = {torch.float32: 2.0**127, torch.float16: 65504.0}
_ACC_WHOLE = {torch.float32: torch.inf, torch.float16: 2048.0}
"""Up to which ``|a| @ |b|`` the partial sums of operands that are called exact are exact.

Those of float32 are so by how they are drawn. float16 has every integer up to 2048.
"""
_CHUNK_ELEMENTS = 1 << 26
_SUSPECT_ELEMENTS = 1 << 24


def error_ratio(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, acc: str = "float32", exact: bool = False
) -> torch.Tensor:
    """Largest error of `c` over its bound; at most 1 for a correct product in any order of sums.

    The bound, element by element, is ``c1 (k + 16) u_acc (|a| @ |b|) + u_out |ref| + underflow``.

    Args:
        a: ``[..., M, K]`` float16 or bfloat16, read as the exact values it holds.
        b: ``[..., K, N]``, likewise.
        c: ``[..., M, N]``, the result to judge, same dtype.
        acc: What products were summed in, `float32` or `float16`.
        exact: The inputs are such that every partial sum is exact, so only the final rounding may
            differ; drops the first term of the bound. Of float16 sums where ``|a| @ |b|`` is at
            most 2048: the inputs are whole numbers, or a few of one power of two in a row of a.

    Returns:
        A float64 scalar on `c`'s device; infinity where `c` is NaN or infinite and should not be,
        or the reverse.

    Source:
        Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., section 3.1. The factor
        c1 = 2 and the extra terms allow for tensor cores, which truncate where the theorem rounds
        and align 16 products before they are summed (Fasi et al., "Numerical behavior of NVIDIA
        tensor cores", PeerJ CS 2021).
    """
    a3, b3, c3 = (_as_batch(x, c.dim()) for x in (a, b, c))
    a3, b3 = a3.expand(c3.shape[0], *a3.shape[1:]), b3.expand(c3.shape[0], *b3.shape[1:])
    rows = max(1, min(c3.shape[1], _CHUNK_ELEMENTS // max(1, c3.shape[2])))
    worst = torch.zeros((), dtype=torch.float64, device=c.device)
    for item in range(c3.shape[0]):
        right = b3[item].double()
        for top in range(0, c3.shape[1], rows):
            left = a3[item, top : top + rows].double()
            ratio = _ratio(left, right, c3[item, top : top + rows], acc, exact)
            worst = torch.maximum(worst, ratio)
    return worst


def suspect_ratio(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, other: torch.Tensor, *,
    acc: str = "float32", count: int = 32,
) -> torch.Tensor:  # fmt: skip
    """`error_ratio` of the elements of `c` that are the farthest from another result.

    For sizes at which the exact product would take too long: whatever is wrong in `c` stands out
    beside a result that is right up to its own rounding. Distances count relative to the element
    and the mean of its row.

    Args:
        a: ``[..., M, K]`` float16 or bfloat16; batch dimensions broadcast to those of `c`.
        b: ``[..., K, N]``, likewise.
        c: ``[..., M, N]``, the result to judge, same dtype.
        other: As `c`, from elsewhere; it only says where to look.
        acc: What products were summed in, `float32` or `float16`.
        count: How many elements are judged.

    Returns:
        A float64 scalar on `c`'s device; at most 1 where all of them are within the bound.
    """
    places = _suspects(c, other, count)
    *batch, row, column = torch.unravel_index(places, c.shape)
    rows = a.expand(*c.shape[:-2], *a.shape[-2:])[(*batch, row)]
    columns = b.mT.expand(*c.shape[:-2], *b.mT.shape[-2:])[(*batch, column)]
    judged = c[(*batch, row, column)]
    return error_ratio(rows[:, None, :], columns[:, :, None], judged[:, None, None], acc=acc)


def _suspects(c: torch.Tensor, other: torch.Tensor, count: int) -> torch.Tensor:
    """Flat positions of the elements that differ most, in pieces that take little memory."""
    left, right = c.reshape(-1, c.shape[-1]), other.reshape(-1, c.shape[-1])
    step = max(1, _SUSPECT_ELEMENTS // c.shape[-1])
    found, places = [], []
    for top in range(0, len(left), step):
        x, y = left[top : top + step].float(), right[top : top + step].float()
        size = y.abs()
        usual = size.nan_to_num(nan=0.0, posinf=0.0).mean(dim=-1, keepdim=True)
        apart = (x - y).abs() / (size + usual)
        same = (x == y) | (x.isnan() & y.isnan())
        apart = torch.where(same, 0.0, apart.nan_to_num(nan=torch.inf)).flatten()
        best = apart.topk(min(count, apart.numel()))
        found.append(best.values)
        places.append(best.indices + top * c.shape[-1])
    chosen = torch.cat(found).topk(min(count, c.numel())).indices
    return torch.cat(places)[chosen]


def split_ratio(
    a: torch.Tensor, b: torch.Tensor, whole: torch.Tensor,
    parts: tuple[torch.Tensor, torch.Tensor], *, acc: str = "float32", exact: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Largest distance of a product from the sum of its halves, over what rounding allows.

    A computed x is within ``e = s + u_out (|X| + s) + underflow`` of its exact X (`error_ratio`),
    and ``|X| <= |x| + e``, so ``e <= (s + u_out (|x| + s) + underflow) / (1 - u_out)``. The exact
    halves add up to the exact whole, and so do their ``|a| @ |b|``: the bound is the sum of the
    three e. For ``|a| @ |b|`` stands the product of the norms of a's rows and b's columns, which is
    no smaller (Cauchy-Schwarz) and needs no product of matrices.

    Args:
        a: ``[..., M, K]`` float16 or bfloat16.
        b: ``[..., K, N]``, likewise.
        whole: ``[..., M, N]``, the result for a and b.
        parts: Results for a with the second, and with the first half of its columns set to zero.
        acc: What products were summed in, `float32` or `float16`.
        exact: Every partial sum is exact, as in `error_ratio`; drops s.

    Returns:
        A float32 scalar; infinity where one is NaN and should not be. Elements with an infinity
        are not judged.
    """
    out, k, acc_dtype = whole.dtype, a.shape[-1], getattr(torch, acc)
    slack = torch.zeros((), device=whole.device)
    if not exact or acc_dtype is torch.float16:
        rows = torch.linalg.vector_norm(a, dim=-1, dtype=torch.float32)[..., :, None]
        columns = torch.linalg.vector_norm(b, dim=-2, dtype=torch.float32)[..., None, :]
        slack = _slack(k, acc_dtype, rows * columns, exact)
    one, two, three = (x.float() for x in (*parts, whole))
    sizes = one.abs() + two.abs() + three.abs()
    unit = _UNIT_ROUNDOFF[out]
    bound = 2 * slack + unit * (sizes + 2 * slack) + 3 * _underflow(k, acc_dtype, out)
    ratio = (three - (one + two)).abs() * (1 - unit) / bound
    return torch.where(sizes.isinf(), 0.0, ratio).nan_to_num(nan=torch.inf).max()


def _slack(k: int, acc: torch.dtype, magnitude: torch.Tensor, exact: bool) -> torch.Tensor:
    """What sums of k products may be off by, where `magnitude` is ``|a| @ |b|``."""
    slack = _ACC_CONSTANT * (k + _ACC_EXTRA_TERMS) * _UNIT_ROUNDOFF[acc] * magnitude
    return torch.where(magnitude <= _ACC_WHOLE[acc], 0.0, slack) if exact else slack


def _underflow(k: int, acc: torch.dtype, out: torch.dtype) -> float:
    return _HALF_SMALLEST[out] + k * _ACC_SMALLEST[acc]


def _as_batch(x: torch.Tensor, dims: int) -> torch.Tensor:
    return x.unsqueeze(0) if x.dim() == 2 else x.reshape(-1, *x.shape[-2:])


def _ratio(
    left: torch.Tensor, right: torch.Tensor, c: torch.Tensor, acc: str, exact: bool
) -> torch.Tensor:
    acc_dtype, out = getattr(torch, acc), c.dtype
    reference = left @ right
    magnitude = left.abs() @ right.abs()
    got = c.double()
    k = left.shape[-1]
    slack = _slack(k, acc_dtype, magnitude, exact)
    underflow = _underflow(k, acc_dtype, out)
    bound = slack + _UNIT_ROUNDOFF[out] * (reference.abs() + slack) + underflow
    ratio = (got - reference).abs() / bound
    # A value past the overflow threshold must be infinite; within the slack of it, either may be.
    limit = _OVERFLOW[out]
    past = reference.abs() - slack >= limit
    near = (reference.abs() + slack >= limit) & ~past
    right_infinity = got.isinf() & (got.sign() == reference.sign())
    ratio = torch.where(right_infinity & (past | near | reference.isinf()), 0.0, ratio)
    ratio = torch.where(past & ~right_infinity, torch.inf, ratio)
    ratio = torch.where(reference.isnan(), torch.where(got.isnan(), 0.0, torch.inf), ratio)
    ratio = torch.where(reference.isfinite() & got.isnan(), torch.inf, ratio)
    # Sums that overflow the accumulator may turn into NaN on the way; the bound says nothing there.
    unknown = (magnitude + slack >= _ACC_OVERFLOW[acc_dtype]) & magnitude.isfinite()
    ratio = torch.where(unknown, 0.0, ratio)
    return ratio.nan_to_num(nan=torch.inf).max()
