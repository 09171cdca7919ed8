"""`wgmma`: matrix instructions of a warpgroup, asynchronous, on 16-bit elements.

`wgmma.fence`, `mma_async` m64nNk16 for f16 and bf16 with A from shared memory or registers,
`commit_group`, `wait_group`. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". What is
under way, and how it is carried out, is in `warpgroup`.
"""

from __future__ import annotations

from collections.abc import Callable

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import reader
from l2tune.runtime.emulator.ops.collective import require_whole_warp
from l2tune.runtime.emulator.ops.mma import registers_of
from l2tune.runtime.emulator.ops.warpgroup import Form, Issue, advance, note, progress_of
from l2tune.runtime.emulator.program import (
    Immediate,
    Instruction,
    Kernel,
    UnsupportedInstructionError,
    Vector,
)
from l2tune.runtime.emulator.warp import FULL, Lanes, Step, Wait, Warp


def _finish(warp: Warp, pending: int) -> Wait | None:
    """Wait for all but the newest groups."""
    progress, clocks = progress_of(warp), warp.block.machine.clocks
    count = max(0, len(progress.groups) - pending)
    due = [issue for group in progress.groups[:count] for issue in group]
    left = sum(not issue.done for issue in progress.issued)
    waiting = [issue for issue in due if not issue.done]
    if waiting:
        last = next(i for i, issue in enumerate(progress.issued) if issue is waiting[-1])
        if not advance(warp, progress.first + last + 1):
            return Wait(f"wgmma.wait_group: {left} wgmma wait for other warps of the warpgroup")
    del progress.groups[:count]
    for issue in due[-1:]:
        clocks.acquire(warp.agent, clocks.finished(issue.ticket, proxy="async"))
    if due:
        warp.in_flight.clear()
        for issue in progress.under_way:
            warp.in_flight.update(issue.form.in_flight)
    return None


def _flag(operand: object) -> bool:
    if not isinstance(operand, Immediate):
        raise KeyError(operand)
    return operand.bits != 0


def _form(instruction: Instruction) -> Form:
    shape, accumulator, element, other = instruction.modifiers[3:7]
    columns = int(shape.removeprefix("m64n").removesuffix("k16"))
    if element != other or element not in ("f16", "bf16") or accumulator not in ("f32", "f16"):
        raise UnsupportedInstructionError(instruction, "only f16 and bf16 operands are known")
    target, left, _, _, negate_a, negate_b, *majors = instruction.operands
    in_registers = isinstance(left, Vector)
    slots = tuple(register.slot for register in registers_of(target))
    sources = tuple(r.slot for r in registers_of(left)) if in_registers else ()
    flags = [_flag(major) for major in majors]
    if len(slots) != columns // (2 if accumulator == "f32" else 4) or columns % 8:
        raise UnsupportedInstructionError(instruction, f"{len(slots)} accumulator registers")
    return Form(
        columns, element, accumulator, slots, sources,
        (False, flags[0]) if in_registers else (flags[0], flags[1]),
        tuple(isinstance(o, Immediate) and o.bits == -1 for o in (negate_a, negate_b)),  # type: ignore[arg-type]
        dict.fromkeys(sources, "an unfinished wgmma reads it")
        | dict.fromkeys(slots, "an unfinished wgmma writes it"),
    )  # fmt: skip


def _mma_async(instruction: Instruction, kernel: Kernel) -> Step:
    form = _form(instruction)
    operands = instruction.operands
    read_left: Callable[[Warp, Lanes], Lanes] | None = None
    if not form.left:
        read_left = reader(operands[1], "b64", kernel)
    read_right = reader(operands[2], "b64", kernel)
    scale = reader(operands[3], "pred", kernel)

    def same(warp: Warp, lanes: Lanes, what: str) -> int:
        if (lanes != lanes[0]).any():
            warp.stop(Fault.INVALID_USE, f"{what} differs among the lanes", lanes != lanes[0])
        return int(lanes[0])

    def step(warp: Warp, mask: Lanes) -> None:
        require_whole_warp(warp, mask)
        left = 0 if read_left is None else same(warp, read_left(warp, FULL), "descriptor A")
        right = same(warp, read_right(warp, FULL), "descriptor B")
        accumulates = bool(same(warp, scale(warp, FULL), "scale-d"))
        ticket = warp.block.machine.clocks.issue(warp.agent, "wgmma")
        note(warp, Issue(form, accumulates, (left, right), ticket, warp.instruction))

    return step


def _fence(warp: Warp, mask: Lanes) -> None:
    require_whole_warp(warp, mask)
    progress_of(warp).fenced = True


def _commit(warp: Warp, mask: Lanes) -> None:
    require_whole_warp(warp, mask)
    progress = progress_of(warp)
    progress.groups.append(progress.open)
    progress.open = []


def _build(instruction: Instruction, kernel: Kernel) -> Step | None:
    kind = instruction.modifiers[0]
    if kind == "mma_async":
        return _mma_async(instruction, kernel)
    if kind == "wait_group":
        operand = instruction.operands[0]
        pending = operand.bits if isinstance(operand, Immediate) else 0

        def wait(warp: Warp, mask: Lanes) -> Wait | None:
            require_whole_warp(warp, mask)
            return _finish(warp, pending)

        return wait
    return {"fence": _fence, "commit_group": _commit}.get(kind)


BUILDERS = {"wgmma": _build}
