"""What is timed against what: a name, and how to launch one product into a set's output."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from l2tune.measure.operands import OperandSets
from l2tune.runtime.executable import Executable
from l2tune.spec.geometry import overlaps_predecessor
from l2tune.spec.key import Acc
from l2tune.spec.outcome import Compiled
from l2tune.store.artifacts import Artifacts

TORCH = "torch"
TORCH_FULL_PRECISION = "torch_full_precision"


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way to compute the products.

    Attributes:
        name: Unique within a run.
        group: The baseline it is a variant of; the best variant stands for the group.
        launch: Called with a set's index and a stream, which is torch's current one; queues one
            product.
        overlaps: Its first kernel may start before the one ahead of it has ended.
    """

    name: str
    group: str
    launch: Callable[[int, int], None]
    overlaps: bool = False


def torch_matmul(sets: OperandSets) -> Contestant:
    """Make the contestant that every other is compared with."""

    def launch(index: int, _stream: int) -> None:
        torch.matmul(sets.a[index], sets.b[index], out=sets.c[index])

    return Contestant(TORCH, TORCH, launch)


def torch_full_precision(sets: OperandSets) -> Contestant:
    """Make `torch.matmul` with sums and reduction in half precision forbidden."""

    def launch(index: int, _stream: int) -> None:
        with _torch_options(dict.fromkeys(_HALF_PRECISION, False)):
            torch.matmul(sets.a[index], sets.b[index], out=sets.c[index])

    return Contestant(TORCH_FULL_PRECISION, TORCH_FULL_PRECISION, launch)


def torch_sums_in(acc: Acc) -> contextlib.AbstractContextManager[None]:
    """Have `torch.matmul` sum float16 products in `acc`, as one does who asks for such sums."""
    return _torch_options({"allow_fp16_accumulation": acc == "float16"})


_HALF_PRECISION = (
    "allow_fp16_accumulation",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
)


@contextlib.contextmanager
def _torch_options(values: Mapping[str, bool]) -> Iterator[None]:
    options = torch.backends.cuda.matmul
    before = {name: getattr(options, name) for name in values}
    for name, value in values.items():
        setattr(options, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(options, name, value)


def kernel(compiled: Compiled, sets: OperandSets, *, name: str, cache_dir: Path) -> Contestant:
    """Load a kernel and bind it to the sets' problem.

    Its scratch memory is cleared before each launch where the contract asks for zeros, and that is
    timed with it, since a caller would pay for it too.

    Raises:
        FileNotFoundError: If a cubin is missing from the artifact store.
        LaunchRefusedError: If the driver does not take the kernel.
        ValueError: If the contract's launch data is impossible for the problem.
        torch.OutOfMemoryError: If its workspace does not fit.
    """
    executable = Executable(compiled, Artifacts(cache_dir), device=torch.cuda.current_device())
    return Contestant(
        name=name,
        group=name,
        launch=_KernelLaunch(executable, sets),
        overlaps=overlaps_predecessor(compiled, sets.key.problem(), sets.key.gpu),
    )


class _KernelLaunch:
    """Launches a bound kernel on a set, with scratch memory of its own."""

    def __init__(self, executable: Executable, sets: OperandSets) -> None:
        self._executable = executable  # unloads its modules when it goes
        self._bound = executable.bind(sets.key.problem(), sets.key.gpu)
        self._zeroed = self._bound.workspace_zeroed
        size_bytes = self._bound.workspace_bytes
        self._workspace = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        self._address = self._workspace.data_ptr() if size_bytes else 0
        self._pointers = [
            (a.data_ptr(), b.data_ptr(), c.data_ptr())
            for a, b, c in zip(sets.a, sets.b, sets.c, strict=True)
        ]

    def __call__(self, index: int, stream: int) -> None:
        if self._zeroed:
            self._workspace.zero_()  # on torch's current stream, which is `stream`
        self._bound(*self._pointers[index], self._address, stream)
