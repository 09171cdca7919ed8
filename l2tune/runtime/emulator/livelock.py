"""Tells that warps go round for ever: nothing changes, and each comes back to where it was.

A warp that only computes and loads is a machine of its own: while nobody changes memory, a barrier
or an asynchronous operation, its next state follows from its last. If every warp waits, or is in a
state in which it was before, the launch never ends; there is no false alarm. Loops that count for
long, or that look at a clock, are left to the budget of instructions.
"""

from __future__ import annotations

import hashlib

from l2tune.runtime.emulator.program import Instruction, Special
from l2tune.runtime.emulator.warp import Warp

_QUIET_ROUNDS = 4
"""Rounds without a change before states are compared."""

_PRIVATE = frozenset([
    "abs", "add", "addc", "activemask", "and", "bfe", "bfi", "bfind", "bra", "brev", "brx", "clz",
    "cnot", "copysign", "cos", "cvt", "cvta", "div", "dp2a", "dp4a", "ex2", "fence", "fma", "fns",
    "isspacep", "ld", "ldmatrix", "ldu", "lg2", "lop3", "mad", "mad24", "madc", "mapa", "match",
    "max", "membar", "min", "mma", "mov", "movmatrix", "mul", "mul24", "nanosleep", "neg", "not",
    "or", "popc", "prefetch", "prmt", "rcp", "redux", "rem", "rsqrt", "sad", "selp", "set", "setp",
    "shf", "shfl", "shl", "shr", "sin", "slct", "sqrt", "sub", "subc", "szext", "tanh", "testp",
    "vote", "xor", "atom", "red",
])  # fmt: skip
"""Opcodes that change nothing but registers; and atomics, which are judged by what they change."""

_CLOCKS = ("%clock", "%globaltimer")


def acts(instruction: Instruction) -> bool:
    """Whether executing it may change what other warps see, or reads a clock."""
    for operand in instruction.operands:
        if isinstance(operand, Special) and operand.name.startswith(_CLOCKS):
            return True
    if "async" in instruction.modifiers:
        return True
    if instruction.opcode == "mbarrier":
        return instruction.modifiers[0] not in ("test_wait", "try_wait")
    if instruction.opcode in ("bar", "barrier"):
        return "warp" not in instruction.modifiers
    return instruction.opcode not in _PRIVATE


class Watch:
    """Watches the rounds of a scheduler."""

    def __init__(self) -> None:
        self._changes = -1
        self._quiet = 0
        self._seen: dict[int, set[bytes]] = {}

    def goes_round(self, warps: list[Warp], changes: int) -> bool:
        """Whether all warps wait or go round for ever; to be asked once after each round.

        Args:
            warps: That have not exited.
            changes: How often anything that they share has changed.
        """
        if changes != self._changes:
            self._changes, self._quiet, self._seen = changes, 0, {}
            return False
        self._quiet += 1
        if self._quiet <= _QUIET_ROUNDS:
            return False
        return all([self._came_back(warp) for warp in warps])

    def _came_back(self, warp: Warp) -> bool:
        """Whether a warp waits, or was in this state since the last change."""
        if warp.waiting is not None:
            return True
        state, seen = _state(warp), self._seen.setdefault(warp.agent, set())
        if state in seen:
            return True
        seen.add(state)
        return False


def _state(warp: Warp) -> bytes:
    """What decides on a warp's next steps, but for memory."""
    found = hashlib.blake2b(digest_size=16)
    found.update(repr((warp.at, warp.limit)).encode())
    for lanes in (warp.pc, warp.alive, warp.group, warp.carry, *warp.registers, *warp.defined):
        found.update(b"-" if lanes is None else lanes.tobytes())
    return found.digest()
