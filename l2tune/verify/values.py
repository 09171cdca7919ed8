"""Classes of operand values, each aimed at a kind of mistake that random normals do not show."""

from collections.abc import Callable

import torch

_Pair = tuple[torch.Tensor, torch.Tensor]
_Shape = tuple[int, ...]


def draw(
    name: str, shape_a: _Shape, shape_b: _Shape, *, dtype: torch.dtype, device: str, seed: int
) -> _Pair:
    """Draw operands of a class.

    Args:
        name: A key of `CLASSES`.
        shape_a: ``(batch, m, k)``.
        shape_b: ``(batch, k, n)``.
        dtype: Of the operands.
        device: Where they are made.
        seed: Same seed, same values.

    Returns:
        a and b, dense.
    """
    generator = torch.Generator(device).manual_seed(seed)
    a, b = CLASSES[name](shape_a, shape_b, dtype, generator)
    return a.to(dtype), b.to(dtype)


def is_exact(name: str) -> bool:
    """Whether every partial sum is exact in float32, so that results have one right value."""
    return name in ("integers", "magnitudes", "permutation", "accumulator")


def _randn(shape: _Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _randint(low: int, high: int, shape: _Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=generator, device=generator.device).float()


def _integers(sa: _Shape, sb: _Shape, _: torch.dtype, g: torch.Generator) -> _Pair:
    return _randint(-3, 4, sa, g), _randint(-3, 4, sb, g)


def _normal(sa: _Shape, sb: _Shape, _: torch.dtype, g: torch.Generator) -> _Pair:
    return _randn(sa, g), _randn(sb, g)


def _uniform(sa: _Shape, sb: _Shape, _: torch.dtype, g: torch.Generator) -> _Pair:
    device = g.device
    return torch.rand(sa, generator=g, device=device), torch.rand(sb, generator=g, device=device)


def _heavy_tailed(sa: _Shape, sb: _Shape, _: torch.dtype, g: torch.Generator) -> _Pair:
    scale = torch.exp(2.0 * _randn(sa, g)).clamp(max=500.0)
    return _randn(sa, g) * scale, _randn(sb, g)


def _magnitudes(sa: _Shape, sb: _Shape, _: torch.dtype, g: torch.Generator) -> _Pair:
    """One power of two for each row of a, large and small; b holds signs, zeros mostly."""
    exponents = _randint(-6, 10, (*sa[:-1], 1), g)
    a = torch.exp2(exponents) * (2 * _randint(0, 2, sa, g) - 1)
    keep = torch.rand(sb, generator=g, device=g.device) < min(1.0, 16 / sb[-2])
    return a, _randint(-1, 2, sb, g) * keep


def _permutation(sa: _Shape, sb: _Shape, _: torch.dtype, g: torch.Generator) -> _Pair:
    """Each row of a picks one row of b, so a misplaced element shows as itself."""
    picks = torch.randint(0, sa[-1], sa[:-1], generator=g, device=g.device)
    a = torch.nn.functional.one_hot(picks, sa[-1]).float()
    return a, _randint(-125, 126, sb, g)


def _cancelling(sa: _Shape, sb: _Shape, _: torch.dtype, g: torch.Generator) -> _Pair:
    a, b = _randn(sa, g), _randn(sb, g)
    half = sa[-1] // 2
    a[..., half : 2 * half] = -a[..., :half]
    b[..., half : 2 * half, :] = b[..., :half, :]
    return a, b


def _subnormal(sa: _Shape, sb: _Shape, dtype: torch.dtype, g: torch.Generator) -> _Pair:
    tiny = torch.finfo(dtype).smallest_normal
    return _randn(sa, g) * tiny * 0.25, _randn(sb, g)


def _largest(sa: _Shape, sb: _Shape, dtype: torch.dtype, g: torch.Generator) -> _Pair:
    top = min(torch.finfo(dtype).max, 2.0**60)
    signs = 2 * _randint(0, 2, sa, g) - 1
    return signs * top, _randn(sb, g) / top * 8


def _nonfinite(sa: _Shape, sb: _Shape, _: torch.dtype, g: torch.Generator) -> _Pair:
    """Normals with a few NaN and infinities, at the corners and at tile borders.

    One row of a is zero: a kernel that skips zeros must show that zero times infinity is NaN.
    """
    a, b = _randn(sa, g), _randn(sb, g)
    a[..., sa[-2] // 2, :] = 0
    for x in (a, b):
        rows, columns = x.shape[-2:]
        for row, column, value in (
            (rows - 1, columns - 1, torch.nan),
            (0, columns - 1, torch.inf),
            (min(63, rows - 1), 0, -torch.inf),
            (min(16, rows - 1), min(15, columns - 1), torch.nan),
        ):
            if torch.rand((), generator=g, device=g.device) < 0.7:
                x[..., row, column] = value
    return a, b


def _accumulator(sa: _Shape, sb: _Shape, _: torch.dtype, g: torch.Generator) -> _Pair:
    """Ones, with 16384 and -16384 at two random places of each row of a; b is all ones.

    A half-precision running sum near 16384 has a spacing of 16, so it loses the ones that come
    between the two large terms; a float32 sum is exact. With 16 products summed at once before they
    are rounded, as tensor cores do, places more than 16 apart still show it, hence many rows.
    """
    a = torch.ones(sa, device=g.device)
    places = torch.rand(sa, generator=g, device=g.device).topk(min(2, sa[-1]), dim=-1).indices
    signs = torch.tensor([16384.0, -16384.0], device=g.device)[: places.shape[-1]]
    if sa[-1] > 1:
        a.scatter_(-1, places, signs.expand(places.shape))
    return a, torch.ones(sb, device=g.device)


CLASSES: dict[str, Callable[[_Shape, _Shape, torch.dtype, torch.Generator], _Pair]] = {
    "integers": _integers,
    "normal": _normal,
    "uniform": _uniform,
    "heavy_tailed": _heavy_tailed,
    "magnitudes": _magnitudes,
    "permutation": _permutation,
    "cancelling": _cancelling,
    "subnormal": _subnormal,
    "largest": _largest,
    "nonfinite": _nonfinite,
    "accumulator": _accumulator,
}
