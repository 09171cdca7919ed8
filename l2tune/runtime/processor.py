"""What runs a kernel for the gate: the GPU, or the emulator where there is none.

Both take a compiled kernel, bind it to a problem and launch it on operands by address, so that the
gate's checks are written once.
"""

from typing import Protocol

import torch

from l2tune.runtime import driver
from l2tune.runtime.executable import Executable
from l2tune.spec.gpu import Gpu
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import Problem


class Bound(Protocol):
    """A kernel bound to one problem.

    Attributes:
        workspace_bytes: Scratch memory to pass, 0 for none.
        workspace_zeroed: Whether it must be zero on entry.
    """

    workspace_bytes: int
    workspace_zeroed: bool

    def __call__(self, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        """Launch; every argument is an address or a handle."""


class Processor(Protocol):
    """Where a kernel runs.

    Attributes:
        compiled: The kernel.
        device: Torch's name of where operands lie: `cuda` or `cpu`.
    """

    compiled: Compiled
    device: str

    def bind(self, problem: Problem, gpu: Gpu) -> Bound:
        """Evaluate the contract for `problem`.

        Raises:
            LaunchRefusedError: If the driver refuses the shared memory asked for.
            ValueError: If the grid is impossible.
        """

    def wait(self, *, timeout_s: float, what: str) -> None:
        """Wait until all that was launched on the current stream is done.

        Raises:
            KernelDied: If a kernel faulted, or is not done after `timeout_s`.
        """


class CudaProcessor:
    """The current GPU."""

    device = "cuda"

    def __init__(self, executable: Executable) -> None:
        """Run what `executable` has loaded."""
        self._executable = executable
        self.compiled = executable.compiled

    def bind(self, problem: Problem, gpu: Gpu) -> Bound:
        """Evaluate the contract for `problem`."""
        return self._executable.bind(problem, gpu)

    def wait(self, *, timeout_s: float, what: str) -> None:
        """Wait for the current stream."""
        driver.wait(torch.cuda.current_stream().cuda_stream, timeout_s=timeout_s, what=what)


def current_stream(processor: Processor) -> int:
    """Handle of torch's current stream; 0 where there are no streams."""
    return torch.cuda.current_stream().cuda_stream if processor.device == "cuda" else 0
