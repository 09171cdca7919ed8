"""Operands between guard bands, and an output that shows what was not written.

Inputs lie in buffers filled with NaN, so a read past an operand, or into the padding of a row,
shows in the result. The output's buffer holds one NaN pattern everywhere; afterwards the pattern
must be gone from the result and untouched around it.
"""

import dataclasses

import torch

from l2tune.spec.problem import Problem
from l2tune.verify.case import Case
from l2tune.verify.values import draw

POISON = 0x7FC7
"""Bits of the output's NaN, one that arithmetic does not produce: hardware NaNs are 0x7FFF."""
_GUARD_NAN = 0x7FA5
_MIN_GUARD_BYTES = 1 << 16
_MAX_GUARD_BYTES = 1 << 23
_GUARD_ROWS = 256


@dataclasses.dataclass
class Operand:
    """A strided matrix (or batch) inside a guarded buffer.

    Attributes:
        buffer: All of it, as 16-bit integers.
        view: The logical ``[batch, rows, columns]`` as stored, same memory.
    """

    buffer: torch.Tensor
    view: torch.Tensor

    @property
    def address(self) -> int:
        """Of the first element."""
        return self.view.data_ptr()


@dataclasses.dataclass
class Arena:
    """The operands of one case.

    Attributes:
        problem: What the kernel is told.
        a: As stored.
        b: As stored.
        c: As stored.
    """

    problem: Problem
    a: Operand
    b: Operand
    c: Operand
    _a_t: bool
    _b_t: bool

    @property
    def logical_a(self) -> torch.Tensor:
        """``[batch or 1, m, k]``."""
        return self.a.view.mT if self._a_t else self.a.view

    @property
    def logical_b(self) -> torch.Tensor:
        """``[batch or 1, k, n]``."""
        return self.b.view.mT if self._b_t else self.b.view

    def fill(self, case: Case, *, guard: int = _GUARD_NAN) -> None:
        """Write the case's values; everything around them becomes `guard`."""
        for operand in (self.a, self.b):
            operand.buffer.fill_(guard)
        a, b = draw(
            case.values,
            tuple(self.logical_a.shape),
            tuple(self.logical_b.shape),
            dtype=self.a.view.dtype,
            device=self.a.view.device.type,
            seed=case.seed,
        )
        self.logical_a.copy_(a)
        self.logical_b.copy_(b)

    def poison(self) -> None:
        """Fill the output and everything around it with the NaN pattern."""
        self.c.buffer.fill_(POISON)

    def take_result(self) -> tuple[torch.Tensor, bool]:
        """Return the result, and whether everything around it is untouched; poisons again."""
        result = self.c.view.clone()
        self.c.view.view(torch.int16).fill_(POISON)
        return result, bool((self.c.buffer == POISON).all())


def build(case: Case, layout: str, *, dtype: torch.dtype, device: str) -> Arena:
    """Allocate and fill the operands of `case`.

    Args:
        case: What to build.
        layout: Storage order of a and b.
        dtype: Element type.
        device: `cuda`, or `cpu` in tests.
    """
    problem = case.problem(layout)
    stored_a, stored_b = case.stored(layout)
    arena = Arena(
        problem,
        _operand(stored_a, problem.lda, problem.stride_a, problem, case.offset[0], dtype, device),
        _operand(stored_b, problem.ldb, problem.stride_b, problem, case.offset[1], dtype, device),
        _operand(
            (case.m, case.n), problem.ldc, problem.stride_c, problem, case.offset[2], dtype, device
        ),
        layout[0] == "t",
        layout[1] == "t",
    )
    arena.fill(case)
    arena.poison()
    return arena


def _operand(
    shape: tuple[int, int],
    leading: int,
    stride: int,
    problem: Problem,
    offset: int,
    dtype: torch.dtype,
    device: str,
) -> Operand:
    rows, columns = shape
    matrices = problem.batch if stride else 1
    used = (matrices - 1) * stride + (rows - 1) * leading + columns
    guard = min(max(_MIN_GUARD_BYTES, 2 * _GUARD_ROWS * leading), _MAX_GUARD_BYTES) // 2
    guard = -(-guard // 128) * 128  # keeps the operand's start on a 256-byte boundary
    buffer = torch.empty(guard + offset + used + guard, dtype=torch.int16, device=device)
    view = buffer.view(dtype).as_strided(
        (matrices, rows, columns), (stride, leading, 1), guard + offset
    )
    return Operand(buffer, view)
