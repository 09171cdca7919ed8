"""A thread block while it runs: its warps, its shared memory, its barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2tune.runtime.emulator.program import Kernel

if TYPE_CHECKING:
    from l2tune.runtime.emulator.machine import Machine
    from l2tune.runtime.emulator.memory import SharedMemory
    from l2tune.runtime.emulator.warp import Warp


class Block:
    """One thread block.

    Attributes:
        machine: The launch it belongs to.
        kernel: What it runs.
        index: `%ctaid`.
        rank: In its cluster.
        cluster: The blocks of its cluster, by rank.
        shared: Its shared memory.
        warps: Its warps.
        barriers: State of `bar.sync` by id (`ops.barrier`).
        mbarriers: State of mbarriers by shared address (`ops.mbarrier`).
    """

    def __init__(
        self, machine: Machine, kernel: Kernel, index: tuple[int, int, int], rank: int,
        shared: SharedMemory,
    ) -> None:  # fmt: skip
        self.machine, self.kernel, self.index, self.rank = machine, kernel, index, rank
        self.cluster: list[Block] = [self]
        self.shared = shared
        self.warps: list[Warp] = []
        self.barriers: dict[int, Any] = {}
        self.mbarriers: dict[int, Any] = {}
