"""Bulk copies of contiguous bytes between global and shared memory, and all bulk groups.

A copy into shared memory completes on an mbarrier, one out of it through its bulk group. Both take
effect as late as the program allows. Cache hints and prefetches mean nothing here. Boxes of tensors
are in `tensor_copy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from l2tune.runtime.emulator.block import Block
from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import address, reader
from l2tune.runtime.emulator.ops.groups import copies_of, discard, executing
from l2tune.runtime.emulator.ops.mbarrier_state import Mbarrier, find_mbarrier
from l2tune.runtime.emulator.ops.tensor_map import CHUNK_BYTES, Array
from l2tune.runtime.emulator.program import WARP_LANES, Immediate, Instruction, Kernel
from l2tune.runtime.emulator.races import Engine
from l2tune.runtime.emulator.warp import Lanes, Step, Wait, Warp

_MAX_RANKS = 16
"""Blocks of the largest cluster; one bit of a multicast mask each."""


class BulkCopy:
    """A copy under way.

    Attributes:
        lanes: The one lane that issued it, until it has waited.
        engine: That carries it out.
    """

    engine: ClassVar[Engine] = "load"

    def __init__(self, warp: Warp, lane: int) -> None:
        self.lanes: Lanes = np.arange(WARP_LANES) == lane
        self._warp, self.instruction = warp, warp.instruction
        self._memory = warp.block.machine.memory
        self.ticket = warp.block.machine.clocks.issue(warp.agent, self.engine)


class Load(BulkCopy):
    """A copy into the shared memory of one or more blocks, taken to write from its start on."""

    harmless = False

    def __init__(
        self, warp: Warp, lane: int, fetch: Callable[[BulkCopy], Array], offsets: Array,
        targets: list[tuple[Block, Mbarrier]],
    ) -> None:  # fmt: skip
        super().__init__(warp, lane)
        self._data, size = fetch(self), CHUNK_BYTES
        self._targets = [
            (self._memory.claim_shared(warp, block, offsets, size, ticket=self.ticket), barrier)
            for block, barrier in targets
        ]

    def complete(self) -> None:
        """Write the bytes everywhere, and tell the mbarriers."""
        clocks = self._warp.block.machine.clocks
        known = clocks.finished(self.ticket, proxy="async")
        with executing(self._warp, self.instruction):
            for claim, barrier in self._targets:
                claim.fill(self._data)
                barrier.deliver(self._warp, self._data.size, known)
        discard(self._warp.block.machine, self)


class Store(BulkCopy):
    """A copy from the block's shared memory to global memory, in two halves.

    Attributes:
        written: Whether it has taken effect; whoever waits learns of it all the same.
    """

    engine: ClassVar[Engine] = "store"

    def __init__(
        self, warp: Warp, lane: int, fetch: Callable[[BulkCopy], Array],
        put: Callable[[BulkCopy, Array], None],
    ) -> None:  # fmt: skip
        super().__init__(warp, lane)
        self._fetch, self._put = fetch, put
        self._data: Array | None = None
        self.written = False

    @property
    def harmless(self) -> bool:
        """Whether shared memory has been read; the rest needs no wait at the launch's end."""
        return self._data is not None

    def read(self) -> Array:
        """Read shared memory, once."""
        if self._data is None:
            with executing(self._warp, self.instruction):
                self._data = self._fetch(self)
        return self._data

    def complete(self) -> None:
        """Write global memory."""
        if self.written:
            return
        data, self.written = self.read(), True
        with executing(self._warp, self.instruction):
            self._put(self, data)
        discard(self._warp.block.machine, self)


def require_aligned(warp: Warp, where: int, alignment: int, what: str) -> None:
    """Stop unless an address or size is a multiple of `alignment`."""
    if where % alignment:
        warp.stop(
            Fault.MISALIGNED, f"{what} at {where:#x}, needed a multiple of {alignment}",
            address=where,
        )  # fmt: skip


def destinations(
    warp: Warp, target: int, barrier: int, ranks: int | None
) -> tuple[int, list[tuple[Block, Mbarrier]]]:
    """Offset in shared memory, and the blocks with their mbarriers, that a load goes to."""
    find = warp.block.machine.memory.shared_target
    block, offset = find(warp, "shared::cluster", target)
    barrier_block, barrier_offset = find(warp, "shared::cluster", barrier)
    known = find_mbarrier(warp, "shared::cluster", barrier, publishes=True)
    if ranks is None:
        if block is not barrier_block:
            warp.stop(
                Fault.INVALID_USE, "the mbarrier lies in another block than the destination",
                address=barrier,
            )  # fmt: skip
        return offset, [(block, known)]
    found = []
    for rank in range(_MAX_RANKS):
        if not ranks >> rank & 1:
            continue
        if rank >= len(warp.block.cluster):
            warp.stop(
                Fault.INVALID_USE,
                f"multicast to rank {rank} of a cluster of {len(warp.block.cluster)} blocks",
            )
        other = warp.block.cluster[rank]
        held = other.mbarriers.get(barrier_offset)
        if not isinstance(held, Mbarrier):
            warp.stop(
                Fault.INVALID_USE,
                f"no mbarrier was initialised at offset {barrier_offset:#x} of rank {rank}",
                address=barrier,
            )
        assert isinstance(held, Mbarrier)
        found.append((other, held))
    return offset, found


def issue_store(
    warp: Warp, lane: int, offsets: Array, put: Callable[[BulkCopy, Array], None]
) -> None:
    """Start a copy out of shared memory.

    Args:
        warp: Who issues it.
        lane: Which lane, whose bulk group it joins.
        offsets: Of the 16-byte chunks, in the block's shared memory.
        put: Writes the chunks to global memory.
    """

    def fetch(copy: BulkCopy) -> Array:
        return warp.block.machine.memory.read_shared(
            warp, warp.block, offsets, CHUNK_BYTES, ticket=copy.ticket
        )

    store = Store(warp, lane, fetch, put)
    copies_of(warp).bulk.add(store)
    warp.block.machine.pending.append(store)


def _contiguous_load(instruction: Instruction, kernel: Kernel) -> Step:
    """From global memory, or from the block's own shared memory, to shared memory."""
    target_operand, source_operand, size_operand, barrier_operand, *extra = instruction.operands
    target, source = address(target_operand, kernel), address(source_operand, kernel)
    sizes, barrier = reader(size_operand, "u32", kernel), address(barrier_operand, kernel)
    multicast = "multicast::cluster" in instruction.modifiers
    ranks = reader(extra[0], "u16", kernel) if multicast else None
    from_global = instruction.modifiers[3] == "global"

    def start_one(warp: Warp, mask: Lanes, lane: int) -> None:
        where, size = int(source(warp, mask)[lane]), int(sizes(warp, mask)[lane])
        to = int(target(warp, mask)[lane])
        for value, what in ((where, "the source"), (to, "the destination"), (size, "the size")):
            require_aligned(warp, value, CHUNK_BYTES, what)
        chosen = None if ranks is None else int(ranks(warp, mask)[lane])
        start, targets = destinations(warp, to, int(barrier(warp, mask)[lane]), chosen)
        steps = np.arange(0, size, CHUNK_BYTES)
        memory = warp.block.machine.memory

        def fetch(copy: BulkCopy) -> Array:
            if from_global:
                chunks = steps.astype(np.uint64) + np.uint64(where)
                return memory.read_global(warp, chunks, CHUNK_BYTES, ticket=copy.ticket)
            block, offset = memory.shared_target(warp, "shared", where)
            return memory.read_shared(warp, block, offset + steps, CHUNK_BYTES, ticket=copy.ticket)

        warp.block.machine.pending.append(Load(warp, lane, fetch, start + steps, targets))

    def step(warp: Warp, mask: Lanes) -> None:
        for lane in np.flatnonzero(mask).tolist():
            start_one(warp, mask, lane)

    return step


def _contiguous_store(instruction: Instruction, kernel: Kernel) -> Step:
    target, source = (address(operand, kernel) for operand in instruction.operands[:2])
    sizes = reader(instruction.operands[2], "u32", kernel)

    def start_one(warp: Warp, mask: Lanes, lane: int) -> None:
        to, size = int(target(warp, mask)[lane]), int(sizes(warp, mask)[lane])
        where = int(source(warp, mask)[lane])
        for value, what in ((where, "the source"), (to, "the destination"), (size, "the size")):
            require_aligned(warp, value, CHUNK_BYTES, what)
        memory = warp.block.machine.memory
        _, start = memory.shared_target(warp, "shared", where)
        steps = np.arange(0, size, CHUNK_BYTES)

        def put(copy: BulkCopy, data: Array) -> None:
            chunks = steps.astype(np.uint64) + np.uint64(to)
            memory.write_global(warp, chunks, data, ticket=copy.ticket)

        issue_store(warp, lane, start + steps, put)

    def step(warp: Warp, mask: Lanes) -> None:
        for lane in np.flatnonzero(mask).tolist():
            start_one(warp, mask, lane)

    return step


def _wait_group(instruction: Instruction, kernel: Kernel) -> Step:
    pending = instruction.operands[0]
    newest = pending.bits if isinstance(pending, Immediate) else 0
    only_read = "read" in instruction.modifiers

    def step(warp: Warp, mask: Lanes) -> Wait | None:
        groups, clocks = copies_of(warp).bulk, warp.block.machine.clocks
        for store, _ in groups.due(mask, newest):
            assert isinstance(store, Store)
            if only_read:
                store.read()
            else:
                store.complete()
            clocks.acquire(warp.agent, clocks.finished(store.ticket, proxy="async"))
            if store.written:
                store.lanes = np.zeros_like(store.lanes)
        groups.forget_finished()
        return None

    return step


def _build(instruction: Instruction, kernel: Kernel) -> Step | None:
    modifiers = instruction.modifiers
    if modifiers[:2] != ("async", "bulk") or modifiers[2] == "tensor":
        return None
    if modifiers[2] == "commit_group":

        def commit(warp: Warp, mask: Lanes) -> None:
            copies_of(warp).bulk.commit(mask)

        return commit
    if modifiers[2] == "wait_group":
        return _wait_group(instruction, kernel)
    if modifiers[2] == "prefetch":
        return lambda warp, mask: None
    if modifiers[2] == "global" and "cp_mask" not in modifiers:
        return _contiguous_store(instruction, kernel)
    if modifiers[2] in ("shared::cluster", "shared::cta"):
        return _contiguous_load(instruction, kernel)
    return None


BUILDERS = {"cp": _build}
