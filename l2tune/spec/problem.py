"""One concrete product: sizes, strides and alignment, as a kernel's contract sees them."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """The values behind a contract's names; docs/kernel-format.md defines each.

    Leading dimensions and strides count elements. `align` is in bytes.
    """

    m: int
    n: int
    k: int
    batch: int
    lda: int
    ldb: int
    ldc: int
    stride_a: int
    stride_b: int
    stride_c: int
    a_batched: int
    b_batched: int
    align: int
    contiguous: int

    def names(self) -> dict[str, int]:
        """The problem as a mapping for expressions."""
        return {name: getattr(self, name) for name in self.__slots__}


def alignment_bytes(*quantities_bytes: int) -> int:
    """The largest power of two, at most 16 and at least 2, that divides every quantity.

    >>> alignment_bytes(4096, 2000), alignment_bytes(32, 6), alignment_bytes(0)
    (16, 2, 16)
    """
    bits = 16
    for quantity in quantities_bytes:
        bits |= quantity
    return max(2, bits & -bits)


def aligned_problem(
    *, m: int, n: int, k: int, batch: int, layout: str, align: int,
    a_batched: bool = True, b_batched: bool = True,
) -> Problem:  # fmt: skip
    """A product whose operands are dense but for rows padded up to `align` bytes."""
    step = align // 2
    rows_a, inner_a = (m, k) if layout[0] == "n" else (k, m)
    rows_b, inner_b = (k, n) if layout[1] == "n" else (n, k)
    lda, ldb, ldc = (-(-inner // step) * step for inner in (inner_a, inner_b, n))
    a_many, b_many = int(a_batched and batch > 1), int(b_batched and batch > 1)
    strides = (rows_a * lda * a_many, rows_b * ldb * b_many, m * ldc * int(batch > 1))
    return Problem(
        m=m, n=n, k=k, batch=batch, lda=lda, ldb=ldb, ldc=ldc,
        stride_a=strides[0], stride_b=strides[1], stride_c=strides[2],
        a_batched=a_many, b_batched=b_many,
        align=alignment_bytes(align, 2 * lda, 2 * ldb, 2 * ldc, *(2 * s for s in strides)),
        contiguous=int((lda, ldb, ldc) == (inner_a, inner_b, n)),
    )  # fmt: skip


def dense_align(*, m: int, n: int, k: int, layout: str) -> int:
    """Alignment in bytes of fresh dense operands of these sizes."""
    inner_a = k if layout[0] == "n" else m
    inner_b = n if layout[1] == "n" else k
    return alignment_bytes(2 * inner_a, 2 * inner_b, 2 * n)
