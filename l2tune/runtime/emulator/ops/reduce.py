"""What changes memory from afar: `st.async`, `red.async`, `cp.reduce.async.bulk`.

The first two, and the third into shared memory, complete on an mbarrier; the third into global
memory completes through its bulk group. Reductions are atomic a number at a time. Those of boxes of
tensors are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from l2tune.runtime.emulator.block import Block
from l2tune.runtime.emulator.operands import address, reader
from l2tune.runtime.emulator.ops.atomic import Change, change
from l2tune.runtime.emulator.ops.bulk import (
    BulkCopy,
    destinations,
    issue_store,
    require_aligned,
)
from l2tune.runtime.emulator.ops.data import items
from l2tune.runtime.emulator.ops.groups import discard, executing
from l2tune.runtime.emulator.ops.mbarrier_state import Mbarrier
from l2tune.runtime.emulator.ops.rounding import RAW
from l2tune.runtime.emulator.ops.tensor_map import CHUNK_BYTES, Array
from l2tune.runtime.emulator.program import Instruction, Kernel
from l2tune.runtime.emulator.races import Proxy
from l2tune.runtime.emulator.regions import Claim
from l2tune.runtime.emulator.warp import Lanes, Step, Warp, width_bytes

_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


class Remote(BulkCopy):
    """Bytes on their way to shared memory of the cluster, where they are stored or reduced.

    Of several lanes that store at once, `lanes` has the first.
    """

    harmless = False

    def __init__(
        self, warp: Warp, lane: int, data: Array, offsets: Array,
        target: tuple[Block, Mbarrier], apply: Change | None, proxy: Proxy,
    ) -> None:  # fmt: skip
        super().__init__(warp, lane)
        block, self._barrier = target
        self._data, self._apply, self._proxy = data, apply, proxy
        self._claim = self._memory.claim_shared(
            warp, block, offsets, data.shape[1], ticket=self.ticket, atomic=apply is not None
        )

    def complete(self) -> None:
        """Store or reduce, and tell the mbarrier."""
        clocks = self._warp.block.machine.clocks
        with executing(self._warp, self.instruction):
            if self._apply is None:
                self._claim.fill(self._data)
            else:
                _reduce(self._claim, self._warp, self._data, self._apply)
            known = clocks.finished(self.ticket, proxy=self._proxy)
            self._barrier.deliver(self._warp, self._data.size, known)
        discard(self._warp.block.machine, self)


def _reduce(claim: Claim, warp: Warp, data: Array, apply: Change) -> None:
    claim.update(warp, lambda old: apply(old.reshape(-1), data.reshape(-1)).reshape(old.shape))


def _bytewise(operation: str, ptx_type: str) -> Change:
    """An operation on bytes that hold numbers of a type one after the other."""
    raw: Any = RAW.get(ptx_type) or np.dtype(f"u{width_bytes(ptx_type)}")
    function = change(operation, ptx_type)
    return lambda old, new: function(old.view(raw), new.view(raw)).view(np.uint8)


def _scalar(instruction: Instruction, kernel: Kernel) -> Step | None:
    """`st.async` and `red.async`: one number or a short vector of each lane."""
    modifiers = instruction.modifiers
    if "async" not in modifiers or "mbarrier::complete_tx::bytes" not in modifiers:
        return None
    ptx_type, size = modifiers[-1], width_bytes(modifiers[-1])
    count = next((int(part[1:]) for part in modifiers if part in ("v2", "v4")), 1)
    where, barrier = (address(instruction.operands[i], kernel) for i in (0, 2))
    reads = [reader(item, f"b{8 * size}", kernel) for item in items(instruction.operands[1], count)]
    operation = next((part for part in modifiers if part in _OPERATIONS), "")
    apply = _bytewise(operation, ptx_type) if operation else None

    def step(warp: Warp, mask: Lanes) -> None:
        data = np.stack([read(warp, mask) for read in reads], axis=1).view(np.uint8)
        to, barriers = where(warp, mask), barrier(warp, mask)
        together: dict[int, list[int]] = {}
        for lane in np.flatnonzero(mask).tolist():
            require_aligned(warp, int(to[lane]), size * count, "the destination")
            # Lanes that reduce may meet at one number, so each comes by itself.
            together.setdefault(lane if apply else int(barriers[lane]), []).append(lane)
        for lanes in together.values():
            offsets, target = _destinations(warp, to[lanes], int(barriers[lanes[0]]))
            remote = Remote(warp, lanes[0], data[lanes], offsets, target, apply, "generic")
            warp.block.machine.pending.append(remote)

    return step


def _destinations(warp: Warp, to: Array, barrier: int) -> tuple[Array, tuple[Block, Mbarrier]]:
    """Offsets of what lanes send to one block, all of which one mbarrier of it counts."""
    _, (target,) = destinations(warp, int(to[0]), barrier, None)
    find = warp.block.machine.memory.shared_target
    found = [find(warp, "shared::cluster", int(where)) for where in to]
    for where, (block, _) in zip(to, found, strict=True):
        if block is not target[0]:
            destinations(warp, int(where), barrier, None)  # says what is wrong
    return np.array([offset for _, offset in found]), target


def _bulk(instruction: Instruction, kernel: Kernel) -> Step | None:
    """`cp.reduce.async.bulk`, 16 bytes at a time from the block's shared memory."""
    modifiers = instruction.modifiers
    if modifiers[:3] != ("reduce", "async", "bulk") or modifiers[3] == "tensor":
        return None
    into_global = modifiers[3] == "global"
    target, source = (address(operand, kernel) for operand in instruction.operands[:2])
    sizes = reader(instruction.operands[2], "u32", kernel)
    barrier = None if into_global else address(instruction.operands[3], kernel)
    operation = next(part for part in modifiers if part in _OPERATIONS)
    apply = _bytewise(operation, modifiers[-1])

    def step(warp: Warp, mask: Lanes) -> None:
        memory = warp.block.machine.memory
        for lane in np.flatnonzero(mask).tolist():
            to, where = int(target(warp, mask)[lane]), int(source(warp, mask)[lane])
            size = int(sizes(warp, mask)[lane])
            for value, what in ((where, "the source"), (to, "the destination"), (size, "the size")):
                require_aligned(warp, value, CHUNK_BYTES, what)
            steps = np.arange(0, size, CHUNK_BYTES)
            _, first = memory.shared_target(warp, "shared", where)
            if barrier is None:
                issue_store(warp, lane, first + steps, _putting(warp, to, steps, apply))
                continue
            start, targets = destinations(warp, to, int(barrier(warp, mask)[lane]), None)
            ticket = warp.block.machine.clocks.issue(warp.agent, "load")
            data = memory.read_shared(warp, warp.block, first + steps, CHUNK_BYTES, ticket=ticket)
            remote = Remote(warp, lane, data, start + steps, targets[0], apply, "async")
            warp.block.machine.pending.append(remote)

    return step


def _putting(warp: Warp, to: int, steps: Array, apply: Change) -> Callable[[BulkCopy, Array], None]:
    """Reduces chunks into global memory from an address on."""

    def put(copy: BulkCopy, data: Array) -> None:
        chunks = steps.astype(np.uint64) + np.uint64(to)
        claim = warp.block.machine.memory.claim_global(
            warp, chunks, CHUNK_BYTES, ticket=copy.ticket, atomic=True
        )
        _reduce(claim, warp, data, apply)

    return put


BUILDERS = {"st": _scalar, "red": _scalar, "cp": _bulk}
