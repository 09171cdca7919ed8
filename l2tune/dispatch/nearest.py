"""The policy `nearest`: a proven kernel that was tuned for other products, after a trial.

Which kernel, and whether any, is a model's to say, which is fitted to the cache's records at the
first miss of a process. The kernel's proof covers the product; that its result is right there too
is seen on the operands of the first call, before the kernel may serve one.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import torch

from l2tune import settings
from l2tune.errors import CacheError, DispatchWarning
from l2tune.runtime.driver import LaunchRefusedError
from l2tune.runtime.reference import suspect_ratio
from l2tune.runtime.versions import tools
from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.problem import Problem
from l2tune.spec.record import Record
from l2tune.store import Registry, judge


class Choice(Protocol):
    """What a model says of a key; `l2tune.generate.nearest` describes it."""

    @property
    def record(self) -> Record:
        """One whose kernel it is."""

    @property
    def serves(self) -> bool:
        """Whether the kernel is to run."""


class Model(Protocol):
    """Chooses among the kernels of some records."""

    def choose(self, key: GemmKey, problem: Problem, /) -> Choice | None:
        """The best of those that admit the problem."""


Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

fit: Callable[[Iterable[Record]], Model] | None = None
"""Makes the model; set by whoever may import it, for a stage imports no other."""
_withdrawn: set[str] = set()


def choose(key: GemmKey, problem: Problem, root: Path) -> Record | None:
    """A record of another key whose kernel is to be tried for `key`; None leaves it to torch.

    Args:
        key: What no record was found for.
        problem: The call's.
        root: The cache directory.

    Raises:
        CacheError: If the cache cannot be read.
    """
    if settings.current().policy != "nearest":
        return None
    model = _model(root, key.gpu)
    choice = None if model is None else model.choose(key, problem)
    return choice.record if choice is not None and choice.serves else None


@functools.lru_cache(maxsize=8)
def _model(root: Path, gpu: Gpu) -> Model | None:
    return None if fit is None else fit(usable(Registry(root), gpu))


def usable(registry: Registry, gpu: Gpu) -> Iterator[Record]:
    """The records whose kernels may run on `gpu`; a model is fitted to all of them."""
    here, withdrawn = tools(), registry.quarantined() | _withdrawn
    for record in registry.records():
        right = record.verified.compiled.source.digest not in withdrawn
        if right and judge(record, gpu, here) == "use":
            yield record


def is_withdrawn(source: KernelSource) -> bool:
    """Whether this process saw the kernel give a wrong result."""
    return source.digest in _withdrawn


def forget() -> None:
    """Drop the models; the next miss fits anew."""
    _model.cache_clear()


@dataclasses.dataclass(frozen=True)
class Trial:
    """A kernel that has yet to show its result for a key.

    Attributes:
        key: What it is to compute.
        source: The kernel.
        registry: Where it is noted that the kernel serves the key, or that it is withdrawn.
    """

    key: GemmKey
    source: KernelSource
    registry: Registry

    def passes(
        self, run: Run, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None
    ) -> bool:  # fmt: skip
        """Run once beside `torch.matmul`, compare within the gate's bound, and wait for it.

        A wrong result withdraws the kernel from every key, with a warning.

        Args:
            run: Launches the kernel on the current stream.
            a: The caller's operand, only read.
            b: Likewise.
            out: The caller's result, of which only the form is used.

        Returns:
            Whether it may serve the key.
        """
        into = None if out is None else torch.empty_strided(
            out.shape, out.stride(), dtype=out.dtype, device=out.device
        )  # fmt: skip
        try:
            with torch.no_grad(), torch.autocast(a.device.type, enabled=False):
                expected = torch.matmul(a, b)
                result = run(a, b, into)
                ratio = suspect_ratio(a, b, result, expected, acc=self.source.acc).item()
        except (torch.OutOfMemoryError, LaunchRefusedError):  # nothing was shown of the kernel
            return False
        if not ratio <= 1.0:
            self._withdraw(ratio)
            return False
        self.registry.miss(self.key, count=0, nearest=self.source.name)
        return True

    def _withdraw(self, ratio: float) -> None:
        _withdrawn.add(self.source.digest)
        forget()
        said = "it is withdrawn from every product"
        try:
            self.registry.quarantine(self.source.digest)
        except CacheError as error:
            said = f"it is withdrawn in this process only ({error})"
        warnings.warn(
            f"{self.key.label}: {self.source.name} gave a result {ratio:.3g} times as far off as it"
            f" may be; {said}; torch.matmul answers instead",
            DispatchWarning,
            stacklevel=7,  # the caller of `l2tune.matmul`
        )
