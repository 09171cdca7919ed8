"""The `mbarrier` instructions; what they act on is in `mbarrier_state`.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". An arrival's `state`
holds the number of the phase in its upper half and the pending arrivals in its lower.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import Reader, address, reader, writer
from l2tune.runtime.emulator.ops.mbarrier_state import (
    LIMIT,
    SIZE_BYTES,
    Mbarrier,
    find_mbarrier,
)
from l2tune.runtime.emulator.program import (
    WARP_LANES,
    Instruction,
    Kernel,
    UnsupportedInstructionError,
)
from l2tune.runtime.emulator.warp import Lanes, Step, Wait, Warp


def _space(instruction: Instruction) -> str:
    return next((part for part in instruction.modifiers if part.startswith("shared")), "generic")


Action = Callable[[Warp, int, int], int | None]
"""From an address and the second operand to the result."""


def _each_lane(instruction: Instruction, where: Reader, second: Reader | None, act: Action) -> Step:
    """A step that acts for one lane after the other and writes the results, if any."""
    returns = instruction.modifiers[0] in ("arrive", "arrive_drop")
    writes = writer(instruction.operands[0], "b64") if returns else None

    def step(warp: Warp, mask: Lanes) -> None:
        addresses = where(warp, mask)
        operands = None if second is None else second(warp, mask)
        results = np.zeros(WARP_LANES, dtype=np.uint64)
        for lane in np.flatnonzero(mask).tolist():
            operand = 1 if operands is None else int(operands[lane])
            results[lane] = act(warp, int(addresses[lane]), operand) or 0
        if writes is not None:
            writes(warp, results, mask)

    return step


def _init(instruction: Instruction, kernel: Kernel) -> Step:
    space = _space(instruction)

    def act(warp: Warp, where: int, count: int) -> None:
        block, offset = warp.block.machine.memory.shared_target(warp, space, where)
        if offset % SIZE_BYTES:
            warp.stop(Fault.MISALIGNED, "an mbarrier needs 8-byte alignment", address=where)
        if not 0 < count <= LIMIT:
            warp.stop(Fault.INVALID_USE, f"a count of {count}, needed 1 to {LIMIT}", address=where)
        zeros = np.zeros((1, SIZE_BYTES), dtype=np.uint8)
        warp.block.machine.memory.write_shared(warp, block, np.array([offset]), zeros, ticket=None)
        if offset in block.mbarriers:
            block.mbarriers[offset].valid = False
        block.mbarriers[offset] = Mbarrier(where, count, warp.agent)

    operands = instruction.operands
    return _each_lane(instruction, address(operands[0], kernel), reader(operands[1], "u32", kernel),
                      act)  # fmt: skip


def _inval(instruction: Instruction, kernel: Kernel) -> Step:
    space = _space(instruction)

    def act(warp: Warp, where: int, _: int) -> None:
        find_mbarrier(warp, space, where)
        block, offset = warp.block.machine.memory.shared_target(warp, space, where)
        zeros = np.zeros((1, SIZE_BYTES), dtype=np.uint8)
        warp.block.machine.memory.write_shared(warp, block, np.array([offset]), zeros, ticket=None)
        block.mbarriers.pop(offset).valid = False

    return _each_lane(instruction, address(instruction.operands[0], kernel), None, act)


def _owed(instruction: Instruction, kernel: Kernel) -> Step:
    """`expect_tx` and `complete_tx`."""
    space, expects = _space(instruction), instruction.modifiers[0] == "expect_tx"

    def act(warp: Warp, where: int, count: int) -> None:
        barrier = find_mbarrier(warp, space, where)
        if expects:
            barrier.expect(warp, count)
        else:
            barrier.deliver(warp, count, None)

    operands = instruction.operands
    return _each_lane(instruction, address(operands[0], kernel), reader(operands[1], "u32", kernel),
                      act)  # fmt: skip


def _arrive(instruction: Instruction, kernel: Kernel) -> Step:
    modifiers, operands = instruction.modifiers, instruction.operands
    space, expects = _space(instruction), "expect_tx" in modifiers
    drops, relaxed = modifiers[0] == "arrive_drop", "relaxed" in modifiers
    no_complete = "noComplete" in modifiers

    def act(warp: Warp, where: int, operand: int) -> int:
        barrier = find_mbarrier(warp, space, where)
        state = barrier.phase << 32 | barrier.pending
        count, owed = (1, operand) if expects else (operand, 0)
        if no_complete and count >= barrier.pending:
            warp.stop(
                Fault.INVALID_USE, f"{barrier}, and .noComplete would complete it", address=where
            )
        known = None if relaxed else warp.block.machine.clocks.release(warp.agent)
        barrier.arrive(warp, count, known, owed_bytes=owed, drops=drops)
        return state

    second = reader(operands[2], "u32", kernel) if len(operands) > 2 else None
    return _each_lane(instruction, address(operands[1], kernel), second, act)


def _wait(instruction: Instruction, kernel: Kernel) -> Step:
    """`test_wait` answers; `try_wait` is taken to sleep until the phase is complete."""
    modifiers, operands = instruction.modifiers, instruction.operands
    space, by_parity = _space(instruction), "parity" in modifiers
    sleeps, relaxed = modifiers[0] == "try_wait", "relaxed" in modifiers
    write, where = writer(operands[0], "pred"), address(operands[1], kernel)
    read = reader(operands[2], "u32" if by_parity else "u64", kernel)

    def step(warp: Warp, mask: Lanes) -> Wait | None:
        addresses, phases, clocks = where(warp, mask), read(warp, mask), warp.block.machine.clocks
        done, waits_for = np.zeros(WARP_LANES, dtype=bool), None
        seen: dict[tuple[int, int], bool] = {}
        for lane in np.flatnonzero(mask).tolist():
            key = int(addresses[lane]), int(phases[lane])
            if key not in seen:
                barrier = find_mbarrier(warp, space, key[0])
                phase = key[1] if by_parity else key[1] >> 32
                seen[key] = (barrier.phase & 1) != phase if by_parity else barrier.phase > phase
                if by_parity and phase > 1:
                    warp.stop(Fault.INVALID_USE, f"a parity of {phase}, needed 0 or 1", mask)
                if not seen[key]:
                    waits_for = barrier
                elif barrier.known is not None and not relaxed:
                    clocks.acquire(warp.agent, barrier.known)
            done[lane] = seen[key]
        if sleeps and waits_for is not None and not done.any():
            return Wait(waits_for, lasts=waits_for.stays() if len(seen) == 1 else None)
        write(warp, done, mask)
        return None

    return step


def _pending_count(instruction: Instruction, kernel: Kernel) -> Step:
    write = writer(instruction.operands[0], "b32")
    read = reader(instruction.operands[1], "u64", kernel)

    def step(warp: Warp, mask: Lanes) -> None:
        write(warp, (read(warp, mask) & np.uint64(0xFFFFFFFF)).astype(np.uint32), mask)

    return step


_KINDS: dict[str, Callable[[Instruction, Kernel], Step]] = {
    "init": _init, "inval": _inval, "expect_tx": _owed, "complete_tx": _owed, "arrive": _arrive,
    "arrive_drop": _arrive, "test_wait": _wait, "try_wait": _wait, "pending_count": _pending_count,
}  # fmt: skip


def _build(instruction: Instruction, kernel: Kernel) -> Step:
    kind = _KINDS.get(instruction.modifiers[0])
    if kind is None:
        raise UnsupportedInstructionError(instruction)
    return kind(instruction, kernel)


BUILDERS = {"mbarrier": _build}
