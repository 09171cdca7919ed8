"""Exchanges between the lanes of a warp: `shfl`, `vote`, `match`, `redux`, `activemask`, `elect`.

The lanes that take part are those that execute the instruction; with a member mask that names a
lane that is not among them, the hardware would wait for it or answer anything: INVALID_USE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import Reader, raw_dtype, reader, value_dtype, values, writer
from l2tune.runtime.emulator.program import WARP_LANES, Instruction, Kernel, Pair
from l2tune.runtime.emulator.warp import FULL, Lanes, NotTogetherError, Step, Warp

_LANES = np.arange(WARP_LANES)
_BITS = np.uint32(1) << np.arange(WARP_LANES, dtype=np.uint32)
_ALL = 0xFFFFFFFF


def ballot(lanes: Lanes) -> int:
    """A mask of lanes as 32 bits."""
    return _ALL if lanes is FULL else int(_BITS[lanes].sum(dtype=np.uint32))


def members(read: Reader, warp: Warp, mask: Lanes) -> Lanes:
    """The lanes of a `.sync` instruction's member mask.

    Raises:
        EmulationStopped: If an executing lane is not in its mask.
        NotTogetherError: If a lane that still runs is in the mask but is elsewhere.
    """
    masks = read(warp, mask)
    first = int(masks[mask.argmax()])
    if mask is FULL and first == _ALL and (masks == _ALL).all():
        return FULL
    if not (masks[mask] == first).all():
        warp.stop(Fault.INVALID_USE, "lanes that run together name different member masks", mask)
    named = (np.uint32(first) & _BITS) != 0
    if (mask & ~named).any():
        warp.stop(Fault.INVALID_USE, f"a lane that is not in member mask {first:#x} executes", mask)
    missing = named & ~mask & warp.alive
    if missing.any():
        raise NotTogetherError(
            f"member mask {first:#x} names lane {int(missing.argmax())}, which is elsewhere"
        )
    active: Lanes = named & mask
    return active


def _shfl(instruction: Instruction, kernel: Kernel) -> Step:
    sync, mode, _ = instruction.modifiers
    if sync != "sync" or mode not in ("up", "down", "bfly", "idx"):
        raise KeyError(mode)
    target, a, b, c, member = instruction.operands
    pair = target if isinstance(target, Pair) else Pair(target, None)
    write, write_valid = writer(pair.first, "b32"), writer(pair.second, "pred")
    read, lane, limits = (reader(operand, "b32", kernel) for operand in (a, b, c))
    read_members = reader(member, "b32", kernel)

    def step(warp: Warp, mask: Lanes) -> None:
        value = read(warp, mask)
        active = members(read_members, warp, mask)
        offset = lane(warp, mask).astype(np.int64) & 31
        bounds = limits(warp, mask).astype(np.int64)
        segment, clamp = (bounds >> 8) & 31, bounds & 31
        last = (_LANES & segment) | (clamp & ~segment)
        source, valid = _source(mode, offset, segment, last)
        source = np.where(valid, source, _LANES) & 31
        dead = mask & ~active[source]
        if dead.any():
            warp.stop(
                Fault.INVALID_USE,
                f"shfl reads lane {int(source[dead.argmax()])}, which does not take part",
                dead,
            )
        write(warp, value[source], mask)
        write_valid(warp, valid, mask)

    return step


def _source(mode: str, offset: Lanes, segment: Lanes, last: Lanes) -> tuple[Lanes, Lanes]:
    """Source lane, and whether it is in range (PTX manual, `shfl.sync`)."""
    if mode == "up":
        source = _LANES - offset
        return source, source >= last
    if mode == "down":
        source = _LANES + offset
    elif mode == "bfly":
        source = _LANES ^ offset
    else:
        source = (_LANES & segment) | (offset & ~segment)
    return source, source <= last


def _vote(instruction: Instruction, kernel: Kernel) -> Step:
    sync, mode, ptx_type = instruction.modifiers
    if sync != "sync" or mode not in ("all", "any", "uni", "ballot"):
        raise KeyError(mode)
    target, source, member = instruction.operands
    write, read = writer(target, ptx_type), reader(source, "pred", kernel)
    read_members = reader(member, "b32", kernel)
    dtype: Any = raw_dtype(ptx_type)

    def step(warp: Warp, mask: Lanes) -> None:
        active = members(read_members, warp, mask)
        held = read(warp, mask)
        votes = held[active]
        if mode == "ballot":
            result: Any = ballot(held & active)
        elif mode == "all":
            result = votes.all()
        elif mode == "any":
            result = votes.any()
        else:
            result = votes.all() or not votes.any()
        write(warp, np.full(WARP_LANES, result, dtype=dtype), mask)

    return step


def _match(instruction: Instruction, kernel: Kernel) -> Step:
    mode, sync, ptx_type = instruction.modifiers
    if sync != "sync" or mode not in ("any", "all"):
        raise KeyError(mode)
    target, source, member = instruction.operands
    pair = target if isinstance(target, Pair) else Pair(target, None)
    write, write_all = writer(pair.first, "b32"), writer(pair.second, "pred")
    read, read_members = reader(source, ptx_type, kernel), reader(member, "b32", kernel)

    def step(warp: Warp, mask: Lanes) -> None:
        active = members(read_members, warp, mask)
        value = read(warp, mask)
        equal = (value[:, None] == value[None, :]) & active[None, :]
        if mode == "any":
            write(warp, (equal * _BITS).sum(axis=1, dtype=np.uint32), mask)
            return
        same = bool((value[active] == value[active.argmax()]).all())
        write(warp, np.full(WARP_LANES, ballot(active) if same else 0, dtype=np.uint32), mask)
        write_all(warp, np.full(WARP_LANES, same), mask)

    return step


_REDUCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _redux(instruction: Instruction, kernel: Kernel) -> Step:
    sync, operation, ptx_type = instruction.modifiers
    if sync != "sync" or ptx_type not in ("u32", "s32", "b32"):
        raise KeyError(ptx_type)
    reduction, dtype = _REDUCTIONS[operation], value_dtype(ptx_type)
    target, source, member = instruction.operands
    write, read = writer(target, "b32"), values(source, ptx_type, kernel)
    read_members = reader(member, "b32", kernel)

    def step(warp: Warp, mask: Lanes) -> None:
        active = members(read_members, warp, mask)
        result = reduction.reduce(read(warp, mask)[active], dtype=dtype)
        write(warp, np.full(WARP_LANES, result, dtype=dtype).view(np.uint32), mask)

    return step


def _activemask(instruction: Instruction, kernel: Kernel) -> Step:
    write = writer(instruction.operands[0], "b32")
    return lambda warp, mask: write(warp, np.full(WARP_LANES, ballot(mask), dtype=np.uint32), mask)


def _elect(instruction: Instruction, kernel: Kernel) -> Step:
    """The lowest lane of the member mask leads."""
    target, member = instruction.operands
    pair: Pair = target if isinstance(target, Pair) else Pair(None, target)
    write, write_leads = writer(pair.first, "b32"), writer(pair.second, "pred")
    read_members = reader(member, "b32", kernel)

    def step(warp: Warp, mask: Lanes) -> None:
        leader = int(members(read_members, warp, mask).argmax())
        write(warp, np.full(WARP_LANES, leader, dtype=np.uint32), mask)
        write_leads(warp, np.equal(_LANES, leader), mask)

    return step


BUILDERS: dict[str, Callable[[Instruction, Kernel], Step | None]] = {
    "shfl": _shfl,
    "vote": _vote,
    "match": _match,
    "redux": _redux,
    "activemask": _activemask,
    "elect": _elect,
}
