"""How the tensors of a product lie in memory, in the words of a BLAS.

Reads sizes and strides of torch tensors; nothing here calls a library.
"""

from typing import NamedTuple

import torch

from l2tune.errors import UnsupportedProblemError

MAX_ALIGN_BYTES = 256


class Matrix(NamedTuple):
    """One operand, stored row-major as it is or transposed.

    Attributes:
        transposed: Whether the rows of the transposed matrix are stored.
        ld: Elements between stored rows.
        stride: Elements between batches; 0 if all share one matrix.
        align_bytes: Largest power of two that divides the address, at most 256.
    """

    transposed: bool
    ld: int
    stride: int
    align_bytes: int


class Gemm(NamedTuple):
    """A product `out = a @ b`: all that a library's plan for it depends on."""

    m: int
    n: int
    k: int
    batch: int
    dtype: torch.dtype
    a: Matrix
    b: Matrix
    out: Matrix


def gemm_of(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Gemm:
    """Describe `out = a @ b`.

    Args:
        a: `[m, k]` or `[batch, m, k]`, of any strides a BLAS can take; `[m, k]` if shared.
        b: `[k, n]` or `[batch, k, n]`, likewise.
        out: `[m, n]` or `[batch, m, n]`, its rows contiguous.

    Raises:
        UnsupportedProblemError: If the tensors do not fit each other, or a BLAS has no words for
            their strides.
    """
    (m, k), (rows, n) = a.shape[-2:], b.shape[-2:]
    batch = out.shape[0] if out.dim() == 3 else 1
    fits = rows == k and out.shape[-2:] == (m, n)
    if not fits or any(x.dim() == 3 and x.shape[0] != batch for x in (a, b)):
        raise UnsupportedProblemError(
            f"gemm: a is {list(a.shape)}, b is {list(b.shape)}, out is {list(out.shape)};"
            " needed [batch, m, k], [batch, k, n] and [batch, m, n]"
        )
    if a.dtype != b.dtype or a.dtype != out.dtype:
        raise UnsupportedProblemError(
            f"gemm: a is {a.dtype}, b is {b.dtype}, out is {out.dtype}; needed one dtype"
        )
    found = Gemm(m, n, k, batch, a.dtype, _matrix(a), _matrix(b), _matrix(out))
    if found.out.transposed:
        raise UnsupportedProblemError(
            f"gemm: out has strides {out.stride()}; needed contiguous rows"
        )
    return found


def _matrix(tensor: torch.Tensor) -> Matrix:
    rows, columns = tensor.shape[-2:]
    row_step, column_step = tensor.stride()[-2:]
    stride = tensor.stride(0) if tensor.dim() == 3 and tensor.shape[0] > 1 else 0
    address = tensor.data_ptr() | MAX_ALIGN_BYTES
    align_bytes = address & -address
    # A single row or column has no step of its own; any step that clears it will do.
    if (column_step == 1 or columns == 1) and (row_step >= columns or rows == 1):
        return Matrix(False, max(row_step if rows > 1 else columns, 1), stride, align_bytes)
    if (row_step == 1 or rows == 1) and (column_step >= rows or columns == 1):
        return Matrix(True, max(column_step if columns > 1 else rows, 1), stride, align_bytes)
    raise UnsupportedProblemError(
        f"gemm: a matrix of {rows} x {columns} has strides {row_step} and {column_step}; needed"
        " contiguous rows or columns"
    )
