"""Tensor copies: boxes of tensors with 1 to 5 dimensions, in tile mode, with any swizzle.

What lies outside the tensor is read as zero and counts as bytes; it is not stored. One exception: a
store whose row ends off a 16-byte boundary is modelled as writing up to the next one, past the
tensor's end, as seen on an H200, so that the bounds check catches it. Cache hints and prefetches
mean nothing here; `im2col` and reductions are not known.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import Reader, address, reader
from l2tune.runtime.emulator.ops.bulk import (
    BulkCopy,
    Load,
    destinations,
    issue_store,
    require_aligned,
)
from l2tune.runtime.emulator.ops.tensor_map import CHUNK_BYTES, Array, EmulatedMap
from l2tune.runtime.emulator.program import (
    WARP_LANES,
    Address,
    Instruction,
    Kernel,
    UnsupportedInstructionError,
)
from l2tune.runtime.emulator.warp import Lanes, Step, Warp

_BOX_ALIGNMENT = 128


def _map_of(warp: Warp, mask: Lanes, where: Lanes, rank: int) -> EmulatedMap:
    """The tensor map whose handle lies at an address."""
    data = warp.block.machine.memory.load(warp, mask, "generic", where, 8)
    handle = int(data[mask][0].copy().view(np.uint64)[0])
    found = warp.block.machine.tensor_maps.get(handle)
    address_of = int(where[mask][0])
    if not isinstance(found, EmulatedMap):
        warp.stop(Fault.INVALID_USE, f"no tensor map lies at {address_of:#x}", address=address_of)
    assert isinstance(found, EmulatedMap)
    if len(found.sizes) != rank:
        warp.stop(
            Fault.INVALID_USE, f"a map of {len(found.sizes)} dimensions is used as one of {rank}",
            address=address_of,
        )  # fmt: skip
    return found


def _fetch_box(warp: Warp, box: EmulatedMap, at: tuple[int, ...]) -> Callable[[BulkCopy], Array]:
    """Read a box from global memory, zeros outside: ``[chunks, 16]``."""

    def fetch(copy: BulkCopy) -> Array:
        data = np.zeros((box.row_count, box.row_bytes), dtype=np.uint8)
        inside = box.rows_inside(at)
        if inside is not None:
            size = inside.end_byte - inside.first_byte
            data[inside.rows, inside.first_byte : inside.end_byte] = (
                warp.block.machine.memory.read_global(
                    warp, inside.addresses, size, ticket=copy.ticket
                )
            )
        return data.reshape(-1, CHUNK_BYTES)

    return fetch


def _put_box(
    warp: Warp, box: EmulatedMap, at: tuple[int, ...]
) -> Callable[[BulkCopy, Array], None]:
    """Write a box to global memory, what lies outside left out but for the last chunk's rest."""

    def put(copy: BulkCopy, data: Array) -> None:
        inside = box.rows_inside(at)
        if inside is None:
            return
        start = at[0] * box.element_bytes
        past = -(start + inside.end_byte) % CHUNK_BYTES
        end = min(inside.end_byte + past, box.row_bytes)
        rows = data.reshape(box.row_count, box.row_bytes)[inside.rows, inside.first_byte : end]
        warp.block.machine.memory.write_global(warp, inside.addresses, rows, ticket=copy.ticket)

    return put


def _coordinates(operand: Address, kernel: Kernel) -> Callable[[Warp, Lanes, int], tuple[int, ...]]:
    readers: list[Reader] = [reader(extra, "s32", kernel) for extra in operand.extra]

    def read(warp: Warp, mask: Lanes, lane: int) -> tuple[int, ...]:
        return tuple(int(r(warp, mask).view(np.int32)[lane]) for r in readers)

    return read


def _tensor_load(instruction: Instruction, kernel: Kernel, rank: int) -> Step:
    target_operand, source, barrier_operand, *extra = instruction.operands
    assert isinstance(source, Address)
    target, barrier = address(target_operand, kernel), address(barrier_operand, kernel)
    where, coordinates = address(source, kernel), _coordinates(source, kernel)
    multicast = "multicast::cluster" in instruction.modifiers
    ranks = reader(extra[0], "u16", kernel) if multicast else None

    def step(warp: Warp, mask: Lanes) -> None:
        maps, targets, barriers = where(warp, mask), target(warp, mask), barrier(warp, mask)
        chosen = None if ranks is None else ranks(warp, mask)
        for lane in np.flatnonzero(mask).tolist():
            one = np.arange(WARP_LANES) == lane
            box = _map_of(warp, one, maps, rank)
            require_aligned(warp, int(targets[lane]), _BOX_ALIGNMENT, "the box in shared memory")
            start, to = destinations(
                warp, int(targets[lane]), int(barriers[lane]),
                None if chosen is None else int(chosen[lane]),
            )  # fmt: skip
            fetch = _fetch_box(warp, box, coordinates(warp, mask, lane))
            offsets = box.chunk_offsets(start).reshape(-1)
            warp.block.machine.pending.append(Load(warp, lane, fetch, offsets, to))

    return step


def _tensor_store(instruction: Instruction, kernel: Kernel, rank: int) -> Step:
    target, source_operand = instruction.operands[:2]
    assert isinstance(target, Address)
    where, coordinates = address(target, kernel), _coordinates(target, kernel)
    source = address(source_operand, kernel)

    def step(warp: Warp, mask: Lanes) -> None:
        maps, sources = where(warp, mask), source(warp, mask)
        for lane in np.flatnonzero(mask).tolist():
            box = _map_of(warp, np.arange(WARP_LANES) == lane, maps, rank)
            require_aligned(warp, int(sources[lane]), _BOX_ALIGNMENT, "the box in shared memory")
            _, start = warp.block.machine.memory.shared_target(warp, "shared", int(sources[lane]))
            offsets = box.chunk_offsets(start).reshape(-1)
            put = _put_box(warp, box, coordinates(warp, mask, lane))
            issue_store(warp, lane, offsets, put)

    return step


def _build(instruction: Instruction, kernel: Kernel) -> Step | None:
    modifiers = instruction.modifiers
    if modifiers[:3] == ("async", "bulk", "prefetch"):
        return lambda warp, mask: None
    if modifiers[:3] != ("async", "bulk", "tensor"):
        return None
    if any(part.startswith("im2col") or part == "tile::gather4" for part in modifiers):
        raise UnsupportedInstructionError(instruction, "only tile mode is known")
    rank = int(modifiers[3].removesuffix("d"))
    if modifiers[4] == "global":
        return _tensor_store(instruction, kernel, rank)
    return _tensor_load(instruction, kernel, rank)


BUILDERS = {"cp": _build}
