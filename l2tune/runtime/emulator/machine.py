"""One launch: a grid of blocks in waves, with their memory, clocks and warps.

The machine holds what a launch shares and what instructions ask for; `execution` runs a warp,
`scheduler` chooses which.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from l2tune.runtime.emulator.block import Block
from l2tune.runtime.emulator.buffers import GlobalMemory
from l2tune.runtime.emulator.execution import Execution
from l2tune.runtime.emulator.findings import EmulationStopped, EmulatorFinding, Fault
from l2tune.runtime.emulator.image import lay_out
from l2tune.runtime.emulator.memory import Memory, SharedMemory
from l2tune.runtime.emulator.ops.unfinished import leftover
from l2tune.runtime.emulator.places import Places
from l2tune.runtime.emulator.program import WARP_LANES, Module
from l2tune.runtime.emulator.races import AGENTS_PER_WARP, Clocks
from l2tune.runtime.emulator.scheduler import Scheduler
from l2tune.runtime.emulator.specials import special
from l2tune.runtime.emulator.statistics import Statistics
from l2tune.runtime.emulator.warp import Lanes, Warp

Triple = tuple[int, int, int]

_MAX_THREADS = 1024
_MAX_CLUSTER = 8
STEP_BUDGET = 50_000_000


class Machine:
    """A launch, and everything that its instructions reach.

    Attributes:
        module: The PTX.
        kernel: What runs.
        params: Each parameter's bytes.
        grid: Blocks.
        block: Threads of each.
        cluster: Blocks of a cluster.
        smem_bytes: Dynamic shared memory of each block.
        sms: Blocks that are resident together.
        clocks: Who knows of whose accesses.
        memory: Loads and stores.
        pending: Asynchronous operations under way, the oldest first.
        tensor_maps: By the handle in the first eight bytes of a map's parameter.
        statistics: What was executed.
    """

    def __init__(
        self, module: Module, kernel_name: str, grid: Triple, block: Triple, cluster: Triple,
        smem_bytes: int, params: list[bytes], memory: GlobalMemory, *, sms: int = 1,
        seed: int | None = None, step_budget: int = STEP_BUDGET, smem_limit_bytes: int = 232448,
        overlaps: bool = False,
    ) -> None:  # fmt: skip
        """Prepare a launch.

        Args:
            module: The PTX.
            kernel_name: Its entry.
            grid: Blocks.
            block: Threads of each.
            cluster: Blocks of a cluster.
            smem_bytes: Dynamic shared memory of each block.
            params: Each parameter's bytes.
            memory: Buffers; they outlive the launch.
            sms: Blocks that are resident together; no fewer than a cluster.
            seed: Of a random order of the warps; None for a fixed one.
            step_budget: Instructions that all warps may execute.
            smem_limit_bytes: Shared memory that a block may have.
            overlaps: Whether it starts before the launch ahead of it has ended (programmatic
                dependent launch).

        Raises:
            EmulationStopped: If the launch asks for more than there is.
            UnsupportedInstructionError: If the emulator does not know an instruction.
            ValueError: If the parameters are not those of the kernel.
        """
        self.module, self.kernel, self.params = module, module.kernels[kernel_name], params
        self.grid, self.block, self.cluster = grid, block, cluster
        self.smem_bytes, self.sms = smem_bytes, sms
        self.image = lay_out(module, self.kernel, memory, params=params, smem_bytes=smem_bytes)
        self._check(smem_limit_bytes)
        self._warps = -(-math.prod(block) // WARP_LANES)
        self.clocks = Clocks(math.prod(grid) * self._warps)
        memory.begin_launch(self.clocks.count, overlaps=overlaps)
        self.memory = Memory(self, Places(memory, self.image))
        self.pending: list[Any] = []  # scheduler.Pending
        self.tensor_maps: dict[int, Any] = {}
        self.statistics = Statistics(kernel_name)
        self._execution = Execution(self.kernel)
        self._seed, self._step_budget = seed, step_budget
        self._slots: dict[Triple, int] = {}

    def run(self) -> Statistics:
        """Run all blocks, as many at a time as there are multiprocessors.

        Raises:
            EmulationStopped: At the first finding.
        """
        scheduler = Scheduler(
            self._execution,
            self.pending,
            seed=self._seed,
            budget=self._step_budget,
            on_steps=self._count,
            changes=lambda: self._execution.acted() + self.memory.changed,
        )
        size = math.prod(self.cluster)
        clusters = list(self._clusters())
        step = max(1, self.sms // size)
        try:
            with np.errstate(all="ignore"):
                for first in range(0, len(clusters), step):
                    self._wave(scheduler, clusters[first : first + step], first * size)
        finally:
            counts = self.statistics.mix = self._execution.mix()
            self.statistics.steps = max(self.statistics.steps, sum(counts.values()))
        return self.statistics

    def special(self, name: str, warp: Warp) -> Lanes:
        """The lanes of a special register."""
        return special(name, warp, self)

    def slot(self, block: Block) -> int:
        """The multiprocessor that a block runs on."""
        return self._slots[block.index]

    def symbol_address(self, name: str, space: str, block: Block) -> int:
        """Where a variable lies in its own state space.

        Raises:
            KeyError: If there is none of this name.
        """
        return self.image.addresses[name]

    def _count(self, steps: int) -> None:
        self.statistics.steps += steps

    def _clusters(self) -> list[list[Triple]]:
        """Indices of the blocks of every cluster, by rank."""
        inside = [(x, y, z) for z, y, x in itertools.product(*map(range, self.cluster[::-1]))]
        outside = [g // c for g, c in zip(self.grid, self.cluster, strict=True)]
        cx, cy, cz = self.cluster
        return [
            [(i * cx + x, j * cy + y, k * cz + z) for x, y, z in inside]
            for k, j, i in itertools.product(*map(range, outside[::-1]))
        ]

    def _wave(self, scheduler: Scheduler, clusters: list[list[Triple]], number: int) -> None:
        """Run some clusters to their end; `number` is that of their first block."""
        warps: list[Warp] = []
        for indices in clusters:
            each = AGENTS_PER_WARP * self._warps
            agents = range(number * each, (number + len(indices)) * each)
            blocks = [
                self._start(index, rank, number + rank, agents)
                for rank, index in enumerate(indices)
            ]
            for block in blocks:
                block.cluster = blocks
                warps += block.warps
            number += len(indices)
        for slot, block in enumerate(dict.fromkeys(warp.block for warp in warps)):
            self._slots[block.index] = slot
        scheduler.run(warps)
        self._check_finished(list(dict.fromkeys(warp.block for warp in warps)))
        for warp in warps:
            self.clocks.stop(warp.agent)

    def _start(self, index: Triple, rank: int, number: int, agents: range) -> Block:
        shared = SharedMemory(self.image.shared_bytes, self.image.addresses, agents)
        block = Block(self, self.kernel, index, rank, shared)
        threads, slots = math.prod(self.block), len(self.kernel.registers)
        for warp in range(self._warps):
            agent = AGENTS_PER_WARP * (number * self._warps + warp)
            lanes = min(WARP_LANES, threads - warp * WARP_LANES)
            self.clocks.start(agent, index, warp)
            block.warps.append(Warp(block, warp, agent, slots, lanes))
        self.statistics.blocks += 1
        return block

    def _check_visitors(self, block: Block) -> None:
        """Find accesses from the cluster that a block does not stay for."""
        known = np.maximum.reduce([self.clocks.known[warp.agent] for warp in block.warps])
        first = block.warps[0].agent
        own = range(first, first + AGENTS_PER_WARP * self._warps)
        shadow = block.shared.region.shadow
        visitor = None if shadow is None else shadow.unordered(known, own)
        if visitor is not None:
            block.warps[0].instruction = None
            block.warps[0].stop(
                Fault.SHARED_RACE,
                f"{self.clocks.describe(visitor)} uses this block's shared memory, and"
                " nothing keeps the block from exiting before",
            )

    def _check_finished(self, blocks: list[Block]) -> None:
        """Find what is under way although all warps have exited."""
        left = [op for op in self.pending if not op.harmless]
        found = [(blocks[0], op.instruction, f"a {type(op).__name__} is under way") for op in left]
        for block in blocks:
            undone = leftover(block)
            if undone is not None:
                found.append((block, *undone))
        for block, instruction, what in found:
            warp = block.warps[0]
            warp.instruction = instruction
            warp.stop(Fault.UNFINISHED_ASYNC, f"at the exit of the last warp: {what}")
        while self.pending:
            self.pending.pop(0).complete()
        if len(blocks[0].cluster) > 1:
            for block in blocks:
                self._check_visitors(block)

    def _check(self, smem_limit_bytes: int) -> None:
        """Refuse a launch that the hardware would."""
        threads, limit = math.prod(self.block), self.kernel.max_threads or _MAX_THREADS
        size = math.prod(self.cluster)
        problems = []
        if not 0 < threads <= min(limit, _MAX_THREADS):
            problems.append(f"{threads} threads a block, at most {min(limit, _MAX_THREADS)}")
        if self.image.shared_bytes > smem_limit_bytes:
            problems.append(
                f"{self.image.shared_bytes} bytes of shared memory, at most {smem_limit_bytes}"
            )
        if size > _MAX_CLUSTER or any(
            g < 1 or g % c for g, c in zip(self.grid, self.cluster, strict=True)
        ):
            problems.append(f"a grid {self.grid} in clusters {self.cluster}")
        if self.kernel.cluster not in (None, self.cluster):
            problems.append(f"clusters {self.cluster}, but it wants {self.kernel.cluster}")
        if problems:
            message = "the launch asks for " + "; ".join(problems)
            raise EmulationStopped(
                EmulatorFinding(Fault.RESOURCES, message, kernel=self.kernel.name)
            )
