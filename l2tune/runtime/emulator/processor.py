"""The emulator as the processor of the gate: operands lie in torch's CPU tensors."""

import ctypes

import numpy as np

from l2tune.errors import InfrastructureError
from l2tune.runtime.emulator.launch import Emulated, emulate
from l2tune.runtime.emulator.regions import Array
from l2tune.runtime.processor import Bound
from l2tune.spec import geometry
from l2tune.spec.gpu import Gpu
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import Problem
from l2tune.store.artifacts import Artifacts

_STEP_BUDGET = 2_000_000
"""Instructions that the warps of one launch may execute: ten seconds of a loop that never ends, and
several times what a kernel needs for the gate's small problems."""


class EmulatedProcessor:
    """Runs a compiled kernel's PTX on the CPU.

    Attributes:
        compiled: The kernel.
        device: Where operands lie.
        last: What came of the last launch.
    """

    device = "cpu"

    def __init__(
        self, compiled: Compiled, artifacts: Artifacts, *, seed: int | None = None
    ) -> None:
        """Fetch the PTX that came from the very compilation of the cubins.

        Args:
            compiled: The kernel.
            artifacts: Where its PTX is.
            seed: Of a random order of the warps; None for a fixed one.

        Raises:
            InfrastructureError: If the PTX is missing or damaged.
        """
        self.compiled = compiled
        self.seed = seed
        self.last: Emulated | None = None
        self.ptx: dict[int, str] = {}
        for index, digest in enumerate(compiled.ptx):
            text = artifacts.get(digest)
            if text is None:
                raise InfrastructureError(f"PTX {digest} is missing from the cache; compile again")
            self.ptx[index] = text.decode()

    def bind(self, problem: Problem, gpu: Gpu) -> Bound:
        """Evaluate the contract for `problem`.

        Raises:
            ValueError: If a grid is impossible.
        """
        geometry.launches(self.compiled, problem, gpu)
        return _BoundEmulation(self, problem, gpu)

    def wait(self, *, timeout_s: float, what: str) -> None:
        """Return at once: an emulated launch is done when its call returns."""


class _BoundEmulation:
    """A kernel bound to one problem."""

    def __init__(self, processor: EmulatedProcessor, problem: Problem, gpu: Gpu) -> None:
        self._processor, self._problem, self._gpu = processor, problem, gpu
        self.workspace_bytes = 0  # the emulator makes its own, uninitialised unless zeros are asked
        self.workspace_zeroed = False

    def __call__(self, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        """Run every launch on the operands at these addresses."""
        processor = self._processor
        operands = {
            name: _elements(address, self._span(name))
            for name, address in (("a", a), ("b", b), ("c", c))
        }
        processor.last = emulate(
            processor.compiled, processor.ptx, self._problem, self._gpu, operands,
            sms=self._gpu.sms, seed=processor.seed, step_budget=_STEP_BUDGET,
        )  # fmt: skip

    def _span(self, operand: str) -> int:
        """Elements from an operand's first to its last."""
        problem, picks = self._problem, self._processor.compiled.source.picks
        transposed = bool(picks.get(f"{operand}_t"))
        rows, columns = geometry.stored_shape(operand, problem, transposed=transposed)
        stride = int(getattr(problem, f"stride_{operand}"))
        matrices = problem.batch if stride else 1
        leading = int(getattr(problem, f"ld{operand}"))
        return (matrices - 1) * stride + (rows - 1) * leading + columns


def _elements(address: int, count: int) -> Array:
    """The 16-bit elements at an address, as an array over the same memory."""
    memory = (ctypes.c_uint8 * (2 * count)).from_address(address)
    return np.frombuffer(memoryview(memory), dtype=np.uint16)
