"""A warpgroup's `wgmma` under way: what its four warps have issued, and carrying it out.

An instruction is noted when each of the four warps comes to it, and carried out when the first of
them waits for its group: so operands are read and results written as late as the program allows,
and a slot refilled too early, or a register touched too early, shows. Registers under way are
marked in `Warp.in_flight`. The instructions themselves are in `wgmma`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.ops.groups import executing
from l2tune.runtime.emulator.ops.matrix_descriptor import Descriptor, chunk_offsets, matrix_from
from l2tune.runtime.emulator.ops.mma import accumulator_tables, operand_tables, tensor_core
from l2tune.runtime.emulator.ops.tensor_map import CHUNK_BYTES
from l2tune.runtime.emulator.ops.tensor_math import dot_accumulate
from l2tune.runtime.emulator.program import WARP_LANES, Instruction
from l2tune.runtime.emulator.races import Ticket
from l2tune.runtime.emulator.warp import FULL, Warp

Array = np.ndarray[Any, Any]

_WARPS = 4
_ROWS, _DEPTH = 64, 16
_SIGN = np.uint16(0x8000)


@dataclasses.dataclass(frozen=True)
class Form:
    """One instruction's fixed part.

    Attributes:
        columns: n.
        element: `f16` or `bf16`.
        accumulator: `f32` or `f16`.
        target: Slots of the accumulator registers.
        left: Slots of A's registers, empty if A comes from shared memory.
        mn_major: Of A and of B.
        negated: Of A and of B.
        in_flight: What `Warp.in_flight` says meanwhile, by slot.
    """

    columns: int
    element: str
    accumulator: str
    target: tuple[int, ...]
    left: tuple[int, ...]
    mn_major: tuple[bool, bool]
    negated: tuple[bool, bool]
    in_flight: dict[int, str]


@dataclasses.dataclass
class Issue:
    """One warp's part in an instruction.

    Attributes:
        form: The instruction.
        accumulates: `scale-d`.
        descriptors: Of A (0 if in registers) and of B.
        ticket: The operation, for the clocks.
        done: Whether it has been carried out.
    """

    form: Form
    accumulates: bool
    descriptors: tuple[int, int]
    ticket: Ticket
    instruction: Instruction | None
    done: bool = False


class Progress:
    """What `Warp.tensor` holds: a warp's instructions in order, and its groups.

    Attributes:
        issued: All since the warpgroup last had nothing under way; the four warps' match by place.
        first: Number of `issued[0]` among all instructions of the warp.
        fenced: Whether the warp has run `wgmma.fence` at all.
    """

    def __init__(self) -> None:
        self.issued: list[Issue] = []
        self.first = 0
        self.fenced = False
        self.open: list[Issue] = []
        self.groups: list[list[Issue]] = []

    @property
    def under_way(self) -> list[Issue]:
        """What the warp has not waited for."""
        return [issue for group in (*self.groups, self.open) for issue in group]


def progress_of(warp: Warp) -> Progress:
    """The warp's instructions under way."""
    if warp.tensor is None:
        warp.tensor = Progress()
    progress: Progress = warp.tensor
    return progress


def unfinished(warp: Warp) -> Instruction | None:
    """An instruction that the warp never waited for, to be asked when it exits."""
    under_way = [] if warp.tensor is None else progress_of(warp).under_way
    return under_way[0].instruction if under_way else None


def _group_of(warp: Warp) -> list[Warp]:
    first = warp.index // _WARPS * _WARPS
    warps = warp.block.warps[first : first + _WARPS]
    if len(warps) < _WARPS:
        warp.stop(Fault.INVALID_USE, f"the block's last warpgroup has {len(warps)} warps, needed 4")
    return warps


def note(warp: Warp, issue: Issue) -> None:
    """Mark an instruction's registers, after checking that they may be used."""
    progress, form = progress_of(warp), issue.form
    if not progress.fenced:
        warp.stop(Fault.INVALID_USE, "no wgmma.fence orders the registers before it")
    for other in progress.under_way:
        if other.form.target != form.target and not (
            other.form.in_flight.keys().isdisjoint(form.target)
            and frozenset(other.form.target).isdisjoint(form.left)
        ):
            warp.stop(
                Fault.ACCUMULATOR_IN_FLIGHT, "another wgmma under way has some of its registers"
            )
    needed = (*form.left, *form.target) if issue.accumulates else form.left
    for slot in needed:
        if warp.defined[slot] is not FULL and slot not in warp.in_flight:
            defined = warp.defined[slot]
            if defined is None or not defined.all():
                name = warp.block.kernel.registers[slot].name
                warp.stop(Fault.UNINITIALISED, f"{name} is read before it is written")
    warp.in_flight.update(form.in_flight)
    progress.issued.append(issue)
    progress.open.append(issue)


def _registers(warp: Warp, slots: tuple[int, ...]) -> Array:
    found: list[Any] = [warp.registers[slot] for slot in slots]
    return np.concatenate(found)


def _read_chunks(warp: Warp, issue: Issue, offsets: Array) -> Array:
    """Chunks of shared memory as bytes, read for one warp's instruction."""
    with executing(warp, issue.instruction):
        return warp.block.machine.memory.read_shared(
            warp, warp.block, offsets.reshape(-1), CHUNK_BYTES, ticket=issue.ticket
        )


def _placed(warp: Warp, issue: Issue, bits: int) -> Descriptor:
    descriptor = Descriptor.decode(bits)
    if descriptor.misplaced_rows:
        with executing(warp, issue.instruction):
            warp.stop(
                Fault.MISALIGNED,
                f"a matrix with swizzle {descriptor.swizzle} starts {descriptor.misplaced_rows}"
                f" rows of 128 bytes into the pattern, and its base offset is {descriptor.base}",
                address=descriptor.start,
            )
    return descriptor


def _left(warps: list[Warp], issues: list[Issue]) -> Array:
    """A, ``[64, 16]``: each warp reads its own 16 rows."""
    form, parts = issues[0].form, []
    if form.left:
        table, _ = operand_tables(_DEPTH)
        parts = [_registers(warp, form.left).view(np.uint16)[table] for warp in warps]
    else:
        mn_major = form.mn_major[0]
        descriptor = _placed(warps[0], issues[0], issues[0].descriptors[0])
        quarters = np.split(chunk_offsets(descriptor, _ROWS, mn_major=mn_major), _WARPS)
        for warp, issue, quarter in zip(warps, issues, quarters, strict=True):
            chunks = _read_chunks(warp, issue, quarter)
            parts.append(matrix_from(chunks, _ROWS // _WARPS, mn_major=mn_major))
    matrix = np.concatenate(parts)
    return matrix ^ _SIGN if form.negated[0] else matrix


def _right(warps: list[Warp], issues: list[Issue], number: int) -> Array:
    """B, ``[16, n]``. All four warps read it; here they take turns, to note each one's reads."""
    form, turn = issues[0].form, number % _WARPS
    descriptor = _placed(warps[0], issues[0], issues[0].descriptors[1])
    offsets = chunk_offsets(descriptor, form.columns, mn_major=form.mn_major[1])
    chunks = _read_chunks(warps[turn], issues[turn], offsets)
    matrix = matrix_from(chunks, form.columns, mn_major=form.mn_major[1]).T
    return matrix ^ _SIGN if form.negated[1] else matrix


def _carry_out(warps: list[Warp], number: int, run: list[list[Issue]]) -> None:
    """Instructions in a row with one accumulator: gather it, multiply, scatter it.

    Args:
        warps: The warpgroup.
        number: Of the first instruction.
        run: By instruction, each warp's part.
    """
    form = run[0][0].form
    places, back = accumulator_tables(form.accumulator, form.columns)
    unit = np.uint32 if form.accumulator == "f32" else np.uint16
    total = np.zeros((_ROWS, form.columns), dtype=unit)
    if run[0][0].accumulates:
        total = np.concatenate([_registers(w, form.target).view(unit)[places] for w in warps])
    core = tensor_core(warps[0])
    for step, issues in enumerate(run):
        left, right = _left(warps, issues), _right(warps, issues, number + step)
        start = total if issues[0].accumulates else np.zeros_like(total)
        total = dot_accumulate(
            left, right, start, element=form.element, accumulator=form.accumulator, core=core
        )
        for issue in issues:
            issue.done = True
    for warp, part in zip(warps, np.split(total, _WARPS), strict=True):
        rows = part.reshape(-1)[back].view(np.uint32).reshape(-1, WARP_LANES)
        for slot, row in zip(form.target, rows, strict=True):
            warp.registers[slot], warp.defined[slot] = row, FULL


def _match(warp: Warp, issues: list[Issue]) -> None:
    """Stop unless the four warps are at the same instruction with the same operands."""
    first = issues[0]
    for issue in issues[1:]:
        if issue.form is not first.form or issue.descriptors != first.descriptors:
            warp.stop(
                Fault.BARRIER_DIVERGENCE,
                "the warps of the warpgroup come to different wgmma, or with different descriptors",
            )
        if issue.accumulates != first.accumulates:
            warp.stop(Fault.INVALID_USE, "scale-d differs among the warps of the warpgroup")


def advance(warp: Warp, upto: int) -> bool:
    """Carry out all instructions of the warpgroup before number `upto`, if all warps have come."""
    warps = _group_of(warp)
    states = [progress_of(other) for other in warps]
    if any(state.first + len(state.issued) < upto for state in states):
        return False
    run: list[list[Issue]] = []
    first = states[0].first
    for number in range(first, upto):
        issues = [state.issued[number - state.first] for state in states]
        if issues[0].done:
            continue
        _match(warp, issues)
        if run and run[0][0].form.target != issues[0].form.target:
            _carry_out(warps, number - len(run), run)
            run = []
        run.append(issues)
    if run:
        _carry_out(warps, upto - len(run), run)
    for state in states:
        state.issued = state.issued[upto - state.first :]
        state.first = upto
    return True
