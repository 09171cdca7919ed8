"""Which workers a fleet has: one that times on each GPU, and several that prove."""

import dataclasses
import os
from types import TracebackType
from typing import Self

from l2tune import settings
from l2tune.dispatch import native
from l2tune.runtime.worker import NO_GPU, Worker
from l2tune.spec.outcome import Compiled
from l2tune.stages import Bench

_PROVERS_PER_GPU = 12
"""At most, and one a core: its two processes, which launch and emulate, take turns. To emulate a
kernel takes several times as long as to prove it on a GPU, whose memory they share: the largest
products take some 8 GB each."""


@dataclasses.dataclass
class Benches:
    """A fleet's benches. Use as a context manager.

    Attributes:
        timing: One for each GPU; nothing else runs on it while it times.
        proving: Several for each GPU, which they share; the timing ones where there are no others.
    """

    timing: list[Bench]
    proving: list[Bench]

    @classmethod
    def open(cls, *, device: int, gpus: int, keys: int, seed: int, budget_s: float) -> Self:
        """Start workers on `gpus` GPUs from `device` on.

        Args:
            device: Index of the first GPU.
            gpus: How many.
            keys: How many keys there are; no more workers are started than these need.
            seed: What every random draw starts from.
            budget_s: Seconds of timing for each key.
        """
        native.build_if_missing()  # before the workers start: they time the calls that users make
        built: dict[str, Compiled] = {}
        cache_dir = settings.current().cache_dir
        devices = range(device, device + min(gpus, max(1, keys)))
        timing = [Bench(Worker(device=d), cache_dir, seed, budget_s, [], built) for d in devices]
        most = min(_PROVERS_PER_GPU * len(devices), os.cpu_count() or 1, keys)
        proving = [
            Bench(
                Worker(device=devices[index % len(devices)], spares=0), cache_dir, seed, budget_s,
                [Worker(device=NO_GPU, spares=0)], built,
            )
            for index in range(max(1, most))
        ]  # fmt: skip
        return cls(timing, proving)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for bench in {id(bench): bench for bench in (*self.timing, *self.proving)}.values():
            bench.__exit__(kind, error, trace)
