"""`cp.async`: copies of 4 to 16 bytes from global to shared memory, a chunk a lane.

The source is read when the copy is issued, since that is where a bad address belongs. From then on
its destination counts as being written, and the bytes arrive only when a wait asks for them. Bulk
copies, whose names start alike, are in `bulk`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import address, reader
from l2tune.runtime.emulator.ops.groups import copies_of, discard
from l2tune.runtime.emulator.ops.mbarrier_state import Mbarrier, find_mbarrier
from l2tune.runtime.emulator.program import (
    WARP_LANES,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Operand,
    Register,
    UnsupportedInstructionError,
)
from l2tune.runtime.emulator.races import Proxy
from l2tune.runtime.emulator.warp import Lanes, Step, Wait, Warp

_SIZES = {"ca": (4, 8, 16), "cg": (16,)}


_SEEN_BY: Proxy = "async"
"""What has been waited for may be read by wgmma and bulk copies without a proxy fence.

PTX counts cp.async to the generic proxy, which would demand one; neither Triton 3.6 nor CUTLASS's
cp.async main loops issue it, and Triton's results on an H200 are right, so it is no fault here.
"""


class Copy:
    """One instruction's copies, under way.

    Attributes:
        lanes: That have not waited for it.
        harmless: It ends with its block, at the latest; nobody needs to wait.
    """

    harmless = True

    def __init__(self, warp: Warp, mask: Lanes, target: Lanes, data: Lanes, space: str) -> None:
        self.lanes, self.arriving = mask.copy(), mask.copy()
        self._warp, self._mask, self._data = warp, mask.copy(), data
        self.instruction = warp.instruction
        machine = warp.block.machine
        self.ticket = machine.clocks.issue(warp.agent, "copy")
        self._claim = machine.memory.claim(
            warp, mask, space, target, data.shape[1], ticket=self.ticket
        )

    def arrive(self, lanes: Lanes) -> None:
        """Write the chunks of some lanes, unless they are there."""
        lanes = lanes & self.arriving
        if not lanes.any():
            return
        self._claim.fill(self._data[lanes], lanes[self._mask])
        self.arriving &= ~lanes
        if not self.arriving.any():
            discard(self._warp.block.machine, self)

    def complete(self) -> None:
        """Write all that is left."""
        self.arrive(self.arriving)


def _chunk_sizes(
    extra: tuple[Operand, ...], size_bytes: int, kernel: Kernel
) -> Callable[[Warp, Lanes], Lanes]:
    """Bytes that each lane reads: all, `src-size`, or none where `ignore-src` is true."""
    if not extra:
        return lambda warp, mask: np.full(WARP_LANES, size_bytes)
    operand = extra[0]
    if isinstance(operand, Negated) or (isinstance(operand, Register) and operand.type == "pred"):
        ignore = reader(operand, "pred", kernel)
        return lambda warp, mask: np.where(ignore(warp, mask), 0, size_bytes)
    read = reader(operand, "u32", kernel)
    return lambda warp, mask: read(warp, mask).astype(np.int64)


def _read_source(warp: Warp, mask: Lanes, source: Lanes, sizes: Lanes, width: int) -> Lanes:
    """The chunks, zeros where nothing is read."""
    data = np.zeros((WARP_LANES, width), dtype=np.uint8)
    if (sizes[mask] > width).any():
        warp.stop(
            Fault.INVALID_USE,
            f"src-size is {int(sizes[mask].max())}, more than the {width} bytes copied",
            mask & (sizes > width),
        )
    bad = mask & (source % np.uint64(width) != 0)
    if bad.any():
        warp.stop(
            Fault.MISALIGNED,
            f"a copy of {width} bytes needs a source on a multiple of {width}",
            bad,
            address=int(source[bad][0]),
        )
    memory = warp.block.machine.memory
    for size in np.unique(sizes[mask]).tolist():
        lanes = mask & (sizes == size)
        done = 0
        while done < size:  # pieces of a power of two: 14 bytes are 8, 4 and 2
            piece = 1 << ((size - done).bit_length() - 1)
            found = memory.load(warp, lanes, "global", source + np.uint64(done), piece)
            data[lanes, done : done + piece] = found[lanes]
            done += piece
    return data


def _copy(instruction: Instruction, kernel: Kernel) -> Step:
    operands = instruction.operands
    cache, space = instruction.modifiers[1], instruction.modifiers[2]
    width = operands[2].bits if isinstance(operands[2], Immediate) else 0
    if width not in _SIZES[cache]:
        raise UnsupportedInstructionError(instruction, f"cp-size must be one of {_SIZES[cache]}")
    hinted = any(part.endswith("::cache_hint") for part in instruction.modifiers)
    extra = operands[3:-1] if hinted else operands[3:]
    target, source = address(operands[0], kernel), address(operands[1], kernel)
    sizes = _chunk_sizes(extra, width, kernel)

    def step(warp: Warp, mask: Lanes) -> None:
        where = target(warp, mask)
        bad = mask & (where % np.uint64(width) != 0)
        if bad.any():
            warp.stop(
                Fault.MISALIGNED,
                f"a copy of {width} bytes needs a destination on a multiple of {width}",
                bad,
                address=int(where[bad][0]),
            )
        data = _read_source(warp, mask, source(warp, mask), sizes(warp, mask), width)
        copy = Copy(warp, mask, where, data, space)
        copies_of(warp).single.add(copy)
        warp.block.machine.pending.append(copy)

    return step


def _finish(warp: Warp, mask: Lanes, pending: int | None) -> None:
    groups, clocks = copies_of(warp).single, warp.block.machine.clocks
    for operation, lanes in groups.due(mask, pending):
        assert isinstance(operation, Copy)
        operation.arrive(lanes)
        operation.lanes = operation.lanes & ~lanes
        clocks.acquire(warp.agent, clocks.finished(operation.ticket, proxy=_SEEN_BY))
    groups.forget_finished()


class Arrival:
    """An arrival on an mbarrier that comes once a warp's earlier copies are there."""

    harmless = False

    def __init__(self, warp: Warp, mask: Lanes, barriers: list[tuple[int, Mbarrier]]) -> None:
        self.lanes = mask.copy()
        self._warp, self._barriers, self.instruction = warp, barriers, warp.instruction
        self._copies = copies_of(warp).single.due(mask, None)
        self._known = warp.block.machine.clocks.release(warp.agent)

    def complete(self) -> None:
        """Let the copies arrive, then the lanes."""
        clocks, known = self._warp.block.machine.clocks, self._known
        for operation, lanes in self._copies:
            assert isinstance(operation, Copy)
            operation.arrive(lanes)
            known = clocks.merge(known, clocks.finished(operation.ticket, proxy=_SEEN_BY))
        for _, barrier in self._barriers:
            barrier.arrive(self._warp, 1, known)
        discard(self._warp.block.machine, self)


def _mbarrier_arrive(instruction: Instruction, kernel: Kernel) -> Step:
    where = address(instruction.operands[0], kernel)
    without_increment = "noinc" in instruction.modifiers

    def step(warp: Warp, mask: Lanes) -> None:
        addresses, barriers = where(warp, mask), []
        for lane in np.flatnonzero(mask):
            barrier = find_mbarrier(warp, "shared", int(addresses[lane]))
            if not without_increment:
                barrier.expect_arrival(warp)
            barriers.append((int(lane), barrier))
        warp.block.machine.pending.append(Arrival(warp, mask, barriers))

    return step


def _build(instruction: Instruction, kernel: Kernel) -> Step | None:
    modifiers, operands = instruction.modifiers, instruction.operands
    if modifiers[0] != "async" or modifiers[1] == "bulk":
        return None
    if modifiers[1] in _SIZES:
        return _copy(instruction, kernel)
    if modifiers[1:] == ("commit_group",):

        def commit(warp: Warp, mask: Lanes) -> None:
            copies_of(warp).single.commit(mask)

        return commit
    if modifiers[1:] == ("wait_all",) or modifiers[1:] == ("wait_group",):
        pending = None
        if operands:
            pending = operands[0].bits if isinstance(operands[0], Immediate) else -1

        def wait(warp: Warp, mask: Lanes) -> Wait | None:
            _finish(warp, mask, pending)
            return None

        return wait
    if modifiers[1:3] == ("mbarrier", "arrive"):
        return _mbarrier_arrive(instruction, kernel)
    return None


BUILDERS = {"cp": _build}
