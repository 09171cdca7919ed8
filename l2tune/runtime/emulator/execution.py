"""Runs one warp: its instructions one after the other, and what becomes of lanes that part.

Lanes that stand at one instruction run together. Those at the lowest run first, so that lanes that
parted meet again where the code joins; a group that waits lets the next one go on.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from l2tune.runtime.emulator import calls, ops
from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.livelock import acts
from l2tune.runtime.emulator.program import (
    Instruction,
    Kernel,
    Label,
    Register,
    UnsupportedInstructionError,
    Vector,
)
from l2tune.runtime.emulator.warp import (
    FULL,
    GIVES_WAY,
    NOWHERE,
    Lanes,
    NotTogetherError,
    Step,
    Wait,
    Warp,
)

_MOVED: Final = Wait("")
"""Returned by the steps of control flow, which have set the warp's place themselves."""


class Execution:
    """A kernel made ready to run.

    Attributes:
        counts: Executions of each instruction by a warp.
    """

    def __init__(self, kernel: Kernel) -> None:
        """Build every step, or find them built.

        Raises:
            UnsupportedInstructionError: If the emulator does not know an instruction.
        """
        self._code = _code(kernel)
        self.counts = [0] * len(self._code)
        self._acting = [at for at, (_, _, i) in enumerate(self._code) if acts(i)]

    def acted(self) -> int:
        """How often instructions were executed that may change what other warps see."""
        return sum([self.counts[at] for at in self._acting])

    def mix(self) -> dict[str, int]:
        """Executions by instruction name."""
        found: dict[str, int] = {}
        for (_, _, instruction), count in zip(self._code, self.counts, strict=True):
            if count and instruction.line:
                found[instruction.name] = found.get(instruction.name, 0) + count
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def run(self, warp: Warp, quantum: int) -> int:
        """Run a warp until all its lanes wait or have exited, or for `quantum` instructions.

        Returns:
            Instructions executed; `warp.waiting` tells why it stopped, if it cannot go on.

        Raises:
            EmulationStopped: At a finding.
        """
        if warp.parked is not None and warp.parked():
            return 0
        code, counts = self._code, self.counts
        warp.waiting, warp.sleeps, warp.parked = None, False, None
        blocked: set[int] = set()
        waits = 0
        for done in range(quantum):
            if warp.at >= warp.limit:
                warp.pc[warp.group] = warp.at
                _choose(warp, blocked)
            at = warp.at
            step, guard, instruction = code[at]
            warp.instruction = instruction
            mask = warp.group if guard is None else _guarded(warp, guard)
            if mask is None:
                warp.at = at + 1
                continue
            try:
                outcome = step(warp, mask)
            except NotTogetherError as missing:
                outcome = missing.wait
            if outcome is None:
                warp.at = at + 1
            elif outcome is GIVES_WAY:
                warp.at, warp.waiting, warp.sleeps = at + 1, None, True
                counts[at] += 1
                return done + 1 - waits
            elif outcome is not _MOVED:
                waits += 1
                if not _set_aside(warp, outcome, blocked):
                    return done + 1 - waits
                continue
            counts[at] += 1
            if warp.at < 0:
                return done + 1 - waits
        warp.waiting = None
        return quantum - waits


@functools.lru_cache(maxsize=16)
def _code(kernel: Kernel) -> list[tuple[Step, tuple[Register, bool] | None, Instruction]]:
    """Step, guard and text of every instruction; steps hold nothing of a launch."""
    code = [
        (_control(i, at, kernel) or ops.build(i, kernel), i.guard, i)
        for at, i in enumerate(kernel.instructions)
    ]
    end = Instruction("exit", (), (), None, 0, None, "(end of the kernel)")
    return [*code, (_exit, None, end)]


def _guarded(warp: Warp, guard: tuple[Register, bool]) -> Lanes | None:
    """Lanes of the running group whose guard holds; None if there are none."""
    register, negated = guard
    group = warp.group
    value = warp.registers[register.slot]
    if value is None or warp.defined[register.slot] is not FULL:
        value = warp.read(register, group)
    if group is FULL:
        count = np.count_nonzero(value)
        if count == len(value):
            return None if negated else group
        if count == 0:
            return group if negated else None
        return ~value if negated else value
    passed: Lanes = (~value if negated else value) & group
    count = np.count_nonzero(passed)
    if count == 0:
        return None
    return group if count == np.count_nonzero(group) else passed


def _set_aside(warp: Warp, wait: Wait, blocked: set[int]) -> bool:
    """Leave the running group where it waits; whether another one can go on."""
    blocked.add(warp.at)
    warp.pc[warp.group] = warp.at
    warp.waiting = warp.waiting or wait
    if _choose(warp, blocked):
        return True
    warp.parked = wait.lasts if len(blocked) == 1 else None
    return False


def _choose(warp: Warp, blocked: set[int]) -> bool:
    """Let the lanes at the lowest instruction run that is not in `blocked`.

    Returns:
        Whether there is one; if not, the lowest are chosen for the next time.
    """
    places = warp.pc[warp.alive]
    distinct = sorted(set(places.tolist()))
    free = [place for place in distinct if place not in blocked]
    warp.at = free[0] if free else distinct[0]
    if len(distinct) == 1:
        warp.group = FULL if len(places) == len(warp.pc) else warp.alive
    else:
        warp.group = warp.alive & (warp.pc == warp.at)
    warp.limit = min((place for place in distinct if place > warp.at), default=NOWHERE)
    return bool(free)


def _branch(warp: Warp, mask: Lanes, target: int) -> Wait:
    if mask is warp.group:
        if warp.limit == NOWHERE and (mask is FULL or mask is warp.alive):
            warp.at = target
            return _MOVED
        warp.pc[mask] = target
    else:
        warp.pc[warp.group] = warp.at + 1
        warp.pc[mask] = target
    _follow(warp)
    return _MOVED


def _follow(warp: Warp) -> None:
    """Go on with the lowest of the lanes that just moved or stand below them."""
    _choose(warp, set())


def _exit(warp: Warp, mask: Lanes) -> Wait:
    if mask is not warp.group:
        warp.pc[warp.group] = warp.at + 1
    warp.alive = warp.alive & ~mask
    if warp.alive.any():
        _follow(warp)
    else:
        warp.at = -1
    return _MOVED


def _scatter(warp: Warp, mask: Lanes, targets: Lanes) -> Wait:
    """Send each lane of `mask` to its own target; those of the group that stay go on."""
    warp.pc[warp.group] = warp.at + 1
    warp.pc[mask] = targets[mask]
    _follow(warp)
    return _MOVED


def _call(instruction: Instruction, at: int, kernel: Kernel) -> Step:
    enter = calls.entering(instruction, at, kernel)

    def step(warp: Warp, mask: Lanes) -> Wait | None:
        target = enter(warp, mask)
        return None if target is None else _branch(warp, mask, target)

    return step


def _return(warp: Warp, mask: Lanes) -> Wait:
    return _scatter(warp, mask, calls.leave(warp, mask))


def _trap(warp: Warp, mask: Lanes) -> Wait:
    warp.stop(Fault.TRAP, "the kernel trapped", mask)
    return _MOVED


def _control(instruction: Instruction, at: int, kernel: Kernel) -> Step | None:
    """The step of an instruction of control flow, which stands at an index, else None."""
    opcode = instruction.opcode
    if opcode == "ret" and at < kernel.start:
        return _return
    if opcode in ("ret", "exit"):
        return _exit
    if opcode in ("trap", "brkpt"):
        return _trap
    if opcode == "call":
        if "__assertfail" in instruction.text:
            return _trap
        return _call(instruction, at, kernel)
    if opcode == "bra":
        target = kernel.labels[_label(instruction, 0)]
        return lambda warp, mask: _branch(warp, mask, target)
    if opcode == "brx":
        return _indexed(instruction, kernel)
    return None


def _indexed(instruction: Instruction, kernel: Kernel) -> Step:
    register, targets = instruction.operands
    if not isinstance(register, Register) or not isinstance(targets, Vector):
        raise UnsupportedInstructionError(instruction, "its targets are not a list of labels")
    labels = [item.name for item in targets.items if isinstance(item, Label)]
    table = np.array([kernel.labels[name] for name in labels])

    def step(warp: Warp, mask: Lanes) -> Wait:
        index = warp.read(register, mask)
        if (index[mask] >= len(table)).any():
            warp.stop(Fault.INVALID_USE, f"{register.name} is no index of {len(table)} targets")
        return _scatter(warp, mask, table[np.where(mask, index, 0)])

    return step


def _label(instruction: Instruction, place: int) -> str:
    operand = instruction.operands[place]
    if not isinstance(operand, Label):
        raise UnsupportedInstructionError(instruction, "its target is not a label")
    return operand.name
