"""Where an exported program's operands lie, so that they are in the key's alignment class."""

from l2tune.spec.geometry import stored_shape
from l2tune.spec.problem import Problem, alignment_bytes


def operand_elements(operand: str, problem: Problem, *, transposed: bool) -> int:
    """Elements that an operand spans, padding included."""
    rows, _ = stored_shape(operand, problem, transposed=transposed)
    stride = int(getattr(problem, f"stride_{operand}"))
    matrices = problem.batch if stride else 1
    return (matrices - 1) * stride + rows * int(getattr(problem, f"ld{operand}"))


def offset_elements(problem: Problem) -> int:
    """How far a and b start past an aligned address, so that they are in the key's alignment class.

    Not at all where leading dimensions and strides already put them there.
    """
    steps = (problem.lda, problem.ldb, problem.ldc, problem.stride_a, problem.stride_b)
    natural = alignment_bytes(*(2 * step for step in (*steps, problem.stride_c)))
    return problem.align // 2 if problem.align < natural else 0
