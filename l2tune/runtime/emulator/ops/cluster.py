"""What reaches past a warp's block, and the registers that its warps share.

`barrier.cluster`, `mapa` and `getctarank` for clusters, `griddepcontrol` for launches, `setmaxnreg`
for the registers of a block.
"""

from __future__ import annotations

import numpy as np

from l2tune.runtime.emulator.block import Block
from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import reader, writer
from l2tune.runtime.emulator.ops.mbarrier_state import published
from l2tune.runtime.emulator.program import WARP_LANES, Immediate, Instruction, Kernel
from l2tune.runtime.emulator.races import Stamp
from l2tune.runtime.emulator.spaces import RANK_BYTES, SHARED
from l2tune.runtime.emulator.warp import Lanes, Step, Wait, Warp

_CLUSTER, _REGISTERS = -1, -2
"""Where `Block.barriers` holds the cluster's barrier (of rank 0) and the block's registers."""

_FILE_REGISTERS = 65536
"""32-bit registers of a multiprocessor, sm_80 to sm_90."""

_MAX_REGISTERS = 255
_REGISTER_STEP, _LEAST_SET, _MOST_SET = 8, 24, 256
"""`setmaxnreg` takes multiples of 8 from 24 to 256."""


class ClusterBarrier:
    """The barrier of all threads of a cluster that have not exited.

    Attributes:
        turn: How often it has completed.
        agreed: What the last completion made known.
    """

    def __init__(self, blocks: list[Block]) -> None:
        self.turn = 0
        self.agreed: Stamp | None = None
        self._blocks = blocks
        self._turns: dict[int, Lanes] = {}
        self._gathered: Stamp | None = None

    def arrive(self, warp: Warp, mask: Lanes, known: Stamp | None) -> None:
        """Count lanes, each of which must have waited since it last came."""
        turns = self._lanes(warp)
        again = mask & (turns >= 0)
        if again.any():
            warp.stop(Fault.INVALID_USE, "barrier.cluster.arrive twice without a wait", again)
        turns[mask] = self.turn
        if known is not None:
            self._gathered = warp.block.machine.clocks.merge(self._gathered, known)

    def passes(self, warp: Warp, mask: Lanes) -> bool:
        """Whether all have come since these lanes did; if so the lanes have left."""
        turns = self._lanes(warp)
        without = mask & (turns < 0)
        if without.any():
            warp.stop(Fault.INVALID_USE, "barrier.cluster.wait without an arrive", without)
        self._turn()
        if (turns[mask] >= self.turn).any():
            return False
        turns[mask] = -1
        return True

    def _lanes(self, warp: Warp) -> Lanes:
        found = self._turns.get(warp.agent)
        if found is None:
            found = self._turns[warp.agent] = np.full(WARP_LANES, -1)
        return found

    def _turn(self) -> None:
        warps = [warp for block in self._blocks for warp in block.warps]
        if all((self._lanes(warp)[warp.alive] == self.turn).all() for warp in warps):
            self.turn += 1
            self.agreed, self._gathered = self._gathered, None


def _barrier(warp: Warp) -> ClusterBarrier:
    first = warp.block.cluster[0]
    found = first.barriers.get(_CLUSTER)
    if found is None:
        found = first.barriers[_CLUSTER] = ClusterBarrier(warp.block.cluster)
    assert isinstance(found, ClusterBarrier)
    return found


def _build_barrier(instruction: Instruction, kernel: Kernel) -> Step | None:
    modifiers = instruction.modifiers
    if modifiers[0] != "cluster":
        return None
    relaxed = "relaxed" in modifiers

    def arrive(warp: Warp, mask: Lanes) -> None:
        clocks = warp.block.machine.clocks
        known = published(warp) if relaxed else clocks.release(warp.agent)
        _barrier(warp).arrive(warp, mask, known)

    def wait(warp: Warp, mask: Lanes) -> Wait | None:
        barrier = _barrier(warp)
        if not barrier.passes(warp, mask):
            return Wait("barrier.cluster: some threads of the cluster have not arrived")
        if barrier.agreed is not None:
            warp.block.machine.clocks.acquire(warp.agent, barrier.agreed)
        return None

    return {"arrive": arrive, "wait": wait}[modifiers[1]]


def _mapa(instruction: Instruction, kernel: Kernel) -> Step:
    """32-bit results are `shared::cluster` addresses, 64-bit ones generic."""
    ptx_type = instruction.modifiers[-1]
    target, source, rank_operand = instruction.operands
    write, read = writer(target, ptx_type), reader(source, ptx_type, kernel)
    ranks = reader(rank_operand, "u32", kernel)
    generic = "shared::cluster" not in instruction.modifiers

    def step(warp: Warp, mask: Lanes) -> None:
        rank, where = ranks(warp, mask).astype(np.uint64), read(warp, mask)
        outside = mask & (rank >= len(warp.block.cluster))
        if outside.any():
            warp.stop(
                Fault.INVALID_USE,
                f"rank {int(rank[outside][0])} of a cluster of {len(warp.block.cluster)} blocks",
                outside,
            )
        offset = where.astype(np.uint64) % np.uint64(RANK_BYTES)
        start = rank * np.uint64(RANK_BYTES) + np.uint64(SHARED if generic else RANK_BYTES)
        write(warp, (start + offset).astype(where.dtype), mask)

    return step


def _getctarank(instruction: Instruction, kernel: Kernel) -> Step:
    target, source = instruction.operands
    ptx_type = instruction.modifiers[-1]
    write, read = writer(target, "u32"), reader(source, ptx_type, kernel)
    space = "shared::cluster" if "shared::cluster" in instruction.modifiers else "generic"

    def step(warp: Warp, mask: Lanes) -> None:
        find, where = warp.block.machine.memory.shared_target, read(warp, mask)
        ranks = np.zeros(WARP_LANES, dtype=np.uint32)
        for lane in np.flatnonzero(mask).tolist():
            ranks[lane] = find(warp, space, int(where[lane]))[0].rank
        write(warp, ranks, mask)

    return step


def _griddepcontrol(instruction: Instruction, kernel: Kernel) -> Step:
    if instruction.modifiers[0] != "wait":
        return lambda warp, mask: None
    return lambda warp, mask: warp.block.machine.clocks.wait_for_earlier_launches(warp.agent)


def _setmaxnreg(instruction: Instruction, kernel: Kernel) -> Step:
    """At first every thread has what an even share of the file allows, as `maxntid` makes it."""
    operand, increases = instruction.operands[0], instruction.modifiers[0] == "inc"
    count = operand.bits if isinstance(operand, Immediate) else 0

    def step(warp: Warp, mask: Lanes) -> Wait | None:
        if count % _REGISTER_STEP or not _LEAST_SET <= count <= _MOST_SET:
            warp.stop(
                Fault.RESOURCES,
                f"{count} registers, needed a multiple of {_REGISTER_STEP} from {_LEAST_SET} to"
                f" {_MOST_SET}",
            )
        block = warp.block
        share = _FILE_REGISTERS // (len(block.warps) * WARP_LANES)
        start = min(_MAX_REGISTERS, share // _REGISTER_STEP * _REGISTER_STEP)
        held: dict[int, int] = block.barriers.setdefault(
            _REGISTERS, {w.index: start for w in block.warps}
        )
        others = sum(held.values()) - held[warp.index]
        if increases and (others + count) * WARP_LANES > _FILE_REGISTERS:
            return Wait(f"setmaxnreg: {count} registers a thread are not free")
        held[warp.index] = count
        return None

    return step


BUILDERS = {
    "barrier": _build_barrier,
    "mapa": _mapa,
    "getctarank": _getctarank,
    "griddepcontrol": _griddepcontrol,
    "setmaxnreg": _setmaxnreg,
}
