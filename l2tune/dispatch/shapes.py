"""From two tensors' sizes and strides to one strided product, where there is one.

`torch.matmul` accepts any strides and broadcasts batches; a kernel takes one batch stride for each
operand and rows or columns that are dense. What does not reduce to that is left to torch.
"""

import dataclasses
import math
from collections.abc import Sequence

from l2tune.spec.key import Layout, Shared
from l2tune.spec.problem import Problem, alignment_bytes


@dataclasses.dataclass(frozen=True)
class Product:
    """What a call computes.

    Attributes:
        problem: Sizes, strides and alignment.
        layout: Storage order of a and b.
        shape: Of the result, as `torch.matmul` returns it.
    """

    problem: Problem
    layout: Layout
    shape: tuple[int, ...]

    @property
    def shared(self) -> Shared:
        """Operands that all batches share, as a key names them."""
        if self.problem.batch == 1:
            return ""
        shared: dict[tuple[int, int], Shared] = {(1, 1): "", (0, 1): "a", (1, 0): "b", (0, 0): "ab"}
        return shared[self.problem.a_batched, self.problem.b_batched]


def product(
    a_shape: Sequence[int],
    a_stride: Sequence[int],
    b_shape: Sequence[int],
    b_stride: Sequence[int],
    *,
    address_bits: int,
    c_stride: Sequence[int] | None = None,
) -> Product | None:
    """Reduce a matmul to one batched product.

    Args:
        a_shape: Sizes of a, at least two of them.
        a_stride: Its strides, elements.
        b_shape: Likewise of b.
        b_stride: Likewise of b.
        address_bits: The operands' addresses, or-ed together.
        c_stride: Strides of a given result; a fresh one is dense.

    Returns:
        None where torch must do it: 1-D or empty operands, sizes that do not match, strides that do
        not reduce, or overlapping rows.
    """
    if len(a_shape) < 2 or len(b_shape) < 2 or a_shape[-1] != b_shape[-2]:
        return None
    if 0 in a_shape or 0 in b_shape:
        return None
    batch_shape = _broadcast(a_shape[:-2], b_shape[:-2])
    if batch_shape is None:
        return None
    m, k, n = a_shape[-2], a_shape[-1], b_shape[-1]
    shape = (*batch_shape, m, n)
    c_stride = _dense_strides(shape) if c_stride is None else c_stride
    if len(b_shape) == 2 and len(a_shape) > 2:  # rows of all of a's batches, one tall matrix
        rows = _collapse(a_shape[:-1], a_stride[:-1])
        c_rows = _collapse(shape[:-1], c_stride[:-1])
        if rows is not None and c_rows is not None:
            m = math.prod(a_shape[:-1])
            a_stride, c_stride = (rows, a_stride[-1]), (c_rows, c_stride[-1])
            a_shape, batch_shape = (m, k), ()
    batch = math.prod(batch_shape)
    steps = [
        _collapse(batch_shape, _batch_strides(x_shape, x_stride, batch_shape))
        for x_shape, x_stride in ((a_shape, a_stride), (b_shape, b_stride))
    ]
    step_c = _collapse(batch_shape, c_stride[:-2])
    a_order, b_order = _order(m, k, a_stride[-2:]), _order(k, n, b_stride[-2:])
    c_order = _order(m, n, c_stride[-2:])
    step_a, step_b = steps
    if a_order is None or b_order is None or c_order is None or c_order[0] == "t":
        return None
    if step_a is None or step_b is None or step_c is None:
        return None
    if _overlaps((batch, step_c), (m, c_order[1]), (n, 1)):
        return None
    if batch == 1:
        step_a = step_b = step_c = 0
    problem = Problem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        lda=a_order[1],
        ldb=b_order[1],
        ldc=c_order[1],
        stride_a=step_a,
        stride_b=step_b,
        stride_c=step_c,
        a_batched=int(step_a != 0),
        b_batched=int(step_b != 0),
        align=alignment_bytes(
            address_bits,
            *(2 * x for x in (a_order[1], b_order[1], c_order[1], step_a, step_b, step_c)),
        ),
        contiguous=int(_is_dense(a_order, b_order, c_order, step_a, step_b, step_c, m, n, k)),
    )
    return Product(problem, a_order[0] + b_order[0], shape)  # type: ignore[arg-type]  # n or t


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    length = max(len(a), len(b))
    a, b = (1,) * (length - len(a)) + tuple(a), (1,) * (length - len(b)) + tuple(b)
    if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
        return None
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def _batch_strides(
    shape: Sequence[int], stride: Sequence[int], batch_shape: Sequence[int]
) -> tuple[int, ...]:
    """Batch strides after broadcasting: 0 where the operand repeats."""
    own = [s if size > 1 else 0 for size, s in zip(shape[:-2], stride[:-2], strict=True)]
    return (0,) * (len(batch_shape) - len(own)) + tuple(own)


def _collapse(shape: Sequence[int], stride: Sequence[int]) -> int | None:
    """The one stride that steps through `shape` in order, or None; 0 for a single element."""
    step, expected = 0, None
    for size, s in zip(reversed(shape), reversed(stride), strict=True):
        if size == 1:
            continue
        if expected is None:
            step = s
        elif s != expected:
            return None
        expected = s * size
    return step


def _order(rows: int, columns: int, stride: Sequence[int]) -> tuple[str, int] | None:
    """Storage order and leading dimension of a matrix, or None where rows overlap or have gaps.

    The stride along a dimension of size 1 means nothing, so a single row or column gets the padded
    leading dimension that every kernel can take.
    """
    row_step, column_step = stride
    if column_step == 1 or columns == 1:
        if rows == 1:
            return "n", -(-columns // 8) * 8
        if row_step >= columns:
            return "n", row_step
    if row_step == 1 or rows == 1:
        if columns == 1:
            return "t", -(-rows // 8) * 8
        if column_step >= rows:
            return "t", column_step
    return None


def _overlaps(*dimensions: tuple[int, int]) -> bool:
    """Whether elements of a (size, stride) form may share memory; sure only where it says no."""
    reached = 0
    for stride, size in sorted((stride, size) for size, stride in dimensions if size > 1):
        if stride <= reached:
            return True
        reached += (size - 1) * stride
    return False


def _dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _is_dense(
    a: tuple[str, int], b: tuple[str, int], c: tuple[str, int],
    step_a: int, step_b: int, step_c: int, m: int, n: int, k: int,
) -> bool:  # fmt: skip
    inner = (k if a[0] == "n" else m, n if b[0] == "n" else k, n)
    dense = all(x[1] == size for x, size in zip((a, b, c), inner, strict=True))
    return dense and step_a in (0, m * k) and step_b in (0, k * n) and step_c in (0, m * n)
