"""What a block leaves undone when it exits, beyond the machine's list of operations under way."""

from __future__ import annotations

from l2tune.runtime.emulator.block import Block
from l2tune.runtime.emulator.ops.mbarrier_state import Mbarrier
from l2tune.runtime.emulator.ops.warpgroup import unfinished
from l2tune.runtime.emulator.program import Instruction


def leftover(block: Block) -> tuple[Instruction | None, str] | None:
    """An instruction and a sentence about what nobody waited for, or None.

    That is a `wgmma` without a wait, and bytes announced on an mbarrier that never came. Arrivals
    in an incomplete phase are normal: rings end so.
    """
    for warp in block.warps:
        instruction = unfinished(warp)
        if instruction is not None:
            return instruction, f"warp {warp.index} exits without a wait for its wgmma"
    for barrier in block.mbarriers.values():
        if isinstance(barrier, Mbarrier) and barrier.owed_bytes:
            return None, f"{barrier}, and the last warp exits"
    return None
