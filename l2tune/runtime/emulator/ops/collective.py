"""What instructions of a whole warp demand: `.aligned`, all lanes at once."""

from __future__ import annotations

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.warp import FULL, Lanes, Warp


def require_whole_warp(warp: Warp, mask: Lanes) -> None:
    """Stop unless all 32 lanes execute the instruction together.

    Raises:
        EmulationStopped: If they do not.
    """
    if mask is FULL or mask.all():
        return
    what = "have exited" if (mask == warp.alive).all() else "are elsewhere"
    warp.stop(
        Fault.BARRIER_DIVERGENCE, f"all 32 lanes must execute it together, some {what}", ~mask
    )
