"""A compiled kernel's whole contract on the emulator: every launch, workspace and tensor map.

Buffers have exact ends and the parameters are those that the driver would get; what a launch's
numbers are is decided by `spec.geometry`, as for the GPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from l2tune.runtime.emulator.buffers import GlobalMemory
from l2tune.runtime.emulator.findings import EmulationStopped
from l2tune.runtime.emulator.machine import STEP_BUDGET, Machine
from l2tune.runtime.emulator.ops.tensor_map import EmulatedMap
from l2tune.runtime.emulator.parser import parse
from l2tune.runtime.emulator.program import Module
from l2tune.runtime.emulator.regions import Array
from l2tune.runtime.emulator.statistics import Statistics
from l2tune.spec import geometry
from l2tune.spec.geometry import LaunchGeometry
from l2tune.spec.gpu import Gpu
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import Problem

_MAP_BYTES = 128
_ORDERED = ("sm_80",)
"""Targets on which launches never overlap, whatever the contract says."""
_LONG = ("stride_a", "stride_b", "stride_c")
_POINTERS = ("a", "b", "c", "workspace")


@dataclasses.dataclass(frozen=True)
class Emulated:
    """What came of a contract's launches.

    Attributes:
        statistics: Of every launch.
        unwritten: Elements of the output that hold no value: batch, row and column of each.
        stray_bytes: Bytes between the output's rows or matrices that were written all the same.
    """

    statistics: tuple[Statistics, ...]
    unwritten: Array
    stray_bytes: int


def emulate(
    compiled: Compiled, ptx: Mapping[int, str], problem: Problem, gpu: Gpu,
    operands: Mapping[str, Array], *, sms: int = 1, seed: int | None = None,
    step_budget: int = STEP_BUDGET,
) -> Emulated:  # fmt: skip
    """Run a kernel for one problem.

    Args:
        compiled: The kernel.
        ptx: Its PTX by launch; a file compiled as a whole has one text, at 0.
        problem: Sizes and strides.
        gpu: Whose limits hold, and whose number of multiprocessors the contract reads.
        operands: `a`, `b` and `c`: flat `uint16` arrays that end where the operand does. The
            product is written into `c`.
        sms: Blocks that are resident together.
        seed: Of a random order of the warps; None for a fixed one.
        step_budget: Instructions that the warps of a launch may execute.

    Raises:
        EmulationStopped: At the first finding, with the statistics of the launches up to it.
        UnsupportedInstructionError: If the emulator does not know an instruction.
        PtxSyntaxError: If it cannot read the PTX.
    """
    run = _Run(compiled, problem, gpu, operands)
    statistics: list[Statistics] = []
    first_overlaps = geometry.overlaps_predecessor(compiled, problem, gpu)
    for launch in geometry.launches(compiled, problem, gpu):
        overlaps = launch.pdl if statistics else first_overlaps
        machine = Machine(
            _module(ptx.get(launch.index) or ptx[0]), launch.kernel, launch.grid, launch.block,
            launch.cluster, launch.smem_bytes, run.params(launch), run.memory, sms=sms, seed=seed,
            step_budget=step_budget, smem_limit_bytes=gpu.smem_limit_bytes,
            overlaps=overlaps and compiled.source.arch not in _ORDERED,
        )  # fmt: skip
        machine.tensor_maps.update(run.maps)
        statistics.append(machine.statistics)
        try:
            machine.run()
        except EmulationStopped as stopped:
            stopped.statistics = tuple(statistics)
            raise
    return Emulated(tuple(statistics), run.unwritten(), run.stray_bytes())


@functools.lru_cache(maxsize=16)
def _module(text: str) -> Module:
    return parse(text)


class _Run:
    """The buffers and parameters of one run.

    Attributes:
        memory: All buffers.
        maps: Tensor maps by handle.
    """

    def __init__(
        self, compiled: Compiled, problem: Problem, gpu: Gpu, operands: Mapping[str, Array]
    ) -> None:
        self.memory = GlobalMemory()
        self._problem = problem
        self._names = compiled.source.names(problem, gpu)
        self._addresses = {
            name: self.memory.add(
                name,
                operands[name].view(np.uint8),
                kind="output" if name == "c" else "input",
                initialised=name != "c",
            )
            for name in ("a", "b", "c")
        }
        workspace = np.zeros(geometry.workspace_bytes(compiled, problem, gpu), dtype=np.uint8)
        self._addresses["workspace"] = (
            self.memory.add(
                "workspace",
                workspace,
                kind="scratch",
                initialised=compiled.source.header.workspace_zeroed,
            )
            if workspace.size
            else 0
        )
        self.maps: dict[int, EmulatedMap] = {}
        self._handles: dict[str, int] = {}
        for name, described in geometry.tensor_maps(compiled, problem, gpu).items():
            self._handles[name] = len(self.maps) + 1
            self.maps[len(self.maps) + 1] = EmulatedMap.of(
                described, self._addresses[described.operand]
            )

    def params(self, launch: LaunchGeometry) -> list[bytes]:
        """The parameters of a launch, in order."""
        found = [self._param(arg) for arg in launch.args]
        return found + [bytes(8)] * launch.extra_pointers

    def _param(self, arg: str) -> bytes:
        if arg in _POINTERS:
            return self._addresses[arg].to_bytes(8, "little")
        if arg.startswith("tma."):
            handle = self._handles[arg.removeprefix("tma.")]
            return handle.to_bytes(8, "little").ljust(_MAP_BYTES, b"\0")
        width = 8 if arg in _LONG else 4
        return self._names[arg].to_bytes(width, "little", signed=True)

    def unwritten(self) -> Array:
        """Batch, row and column of every output element that no launch wrote."""
        held = self._written()[self._elements()]
        return np.argwhere(~held)

    def stray_bytes(self) -> int:
        """Bytes written that belong to no element of the output."""
        written = self.memory.regions[2].written
        assert written is not None
        return int(written.sum()) - int(written.reshape(-1, 2)[np.unique(self._elements())].sum())

    def _written(self) -> Array:
        written = self.memory.regions[2].written
        assert written is not None
        return np.asarray(written.reshape(-1, 2).min(axis=1), dtype=bool)

    def _elements(self) -> Array:
        """Index of every output element, `[batch, m, n]`."""
        p = self._problem
        batch = np.arange(p.batch)[:, None, None] * p.stride_c
        return batch + np.arange(p.m)[:, None] * p.ldc + np.arange(p.n)
