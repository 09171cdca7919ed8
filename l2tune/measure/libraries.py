"""The vendor's libraries as contestants: each in both storage orders of b, the better one counts.

Optional: without nvmath they are left out, and named as missing. A user with that library and the
time to tune it is who we must beat.
"""

import dataclasses
import time
import warnings
from typing import TYPE_CHECKING

import torch

from l2tune.measure.clock import DeviceClock
from l2tune.measure.contestants import Contestant
from l2tune.measure.operands import OperandSets, other_b
from l2tune.measure.statistics import fastest

if TYPE_CHECKING:
    from l2tune.measure.cublaslt import Algorithm, Launch

CUBLAS, HEURISTIC, AUTOTUNED = "cublas", "cublaslt_heuristic", "cublaslt_autotuned"
LIBRARIES = (CUBLAS, HEURISTIC, AUTOTUNED)
_CANDIDATES = 100
_SURELY_TUNED = 16
_FINALISTS = 3
_TUNING_SETS = 8
_TUNING_REPLAYS = 2


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """An algorithm that cuBLASLt offers, its rank, and the copies of b in its storage order."""

    algorithm: "Algorithm"
    order: str
    rank: int
    bs: tuple[torch.Tensor, ...]

    @property
    def name(self) -> str:
        return f"{self.order}/{self.rank}"

    def launches(self, sets: OperandSets, *, count: int) -> "list[Launch]":
        operands = list(zip(sets.a, self.bs, sets.c, strict=True))
        return [self.algorithm.bind(*tensors) for tensors in operands[:count]]


def library_contestants(
    sets: OperandSets, clock: DeviceClock, *, tuning_s: float
) -> tuple[list[Contestant], tuple[str, ...]]:
    """Make the contestants of cuBLAS and cuBLASLt.

    Args:
        sets: The operands.
        clock: Times the candidates of autotuning, briefly; the three best come back as variants.
        tuning_s: Time to spend on that.

    Returns:
        The contestants, and the names of baselines that cannot be had here: all of them for sums
        in float16, which is not how they are bound.
    """
    if sets.key.acc == "float16":
        return [], LIBRARIES
    try:
        from l2tune.measure import cublaslt
    except ImportError:
        warnings.warn(
            "nvmath not found; cuBLAS and cuBLASLt are left out of the baselines"
            " (pip install 'l2tune[tune]')",
            stacklevel=2,
        )
        return [], LIBRARIES
    contestants: list[Contestant] = []
    candidates: list[_Candidate] = []
    for order, bs in {"as_given": sets.b, "other_order": other_b(sets)}.items():
        operands = list(zip(sets.a, bs, sets.c, strict=True))
        plain = [cublaslt.cublas(*tensors) for tensors in operands]
        contestants.append(_contestant(CUBLAS, order, plain))
        for algorithm in cublaslt.cublaslt(*operands[0], limit=1):
            launches = _Candidate(algorithm, order, 0, bs).launches(sets, count=sets.count)
            contestants.append(_contestant(HEURISTIC, order, launches))
        offered = cublaslt.cublaslt(*operands[0], limit=_CANDIDATES)
        candidates += [_Candidate(found, order, rank, bs) for rank, found in enumerate(offered)]
    torch.cuda.synchronize()  # the copies of b were made on another stream than they are read on
    contestants += _autotune(candidates, sets, clock, tuning_s=tuning_s)
    present = {contestant.group for contestant in contestants}
    return contestants, tuple(name for name in LIBRARIES if name not in present)


def _contestant(group: str, variant: str, launches: "list[Launch]") -> Contestant:
    def launch(index: int, stream: int) -> None:
        launches[index](stream)

    return Contestant(f"{group}/{variant}", group, launch)


def _autotune(
    candidates: list[_Candidate], sets: OperandSets, clock: DeviceClock, *, tuning_s: float
) -> list[Contestant]:
    """Time each candidate on some of the sets, and return the best few for the interleaved run.

    In the heuristic's order of preference; what is not reached in time is left out, but for the
    first few.
    """
    deadline = time.monotonic() + tuning_s
    candidates = sorted(candidates, key=lambda candidate: candidate.rank)
    times_us = [float("inf")] * len(candidates)
    for index, candidate in enumerate(candidates):
        if index >= _SURELY_TUNED and time.monotonic() > deadline:
            break
        launches = candidate.launches(sets, count=_TUNING_SETS)
        times_us[index] = _brief_us(candidate.name, launches, clock)
    return [
        _contestant(AUTOTUNED, candidate.name, candidate.launches(sets, count=sets.count))
        for candidate in (candidates[index] for index in fastest(times_us, _FINALISTS))
    ]


def _brief_us(name: str, launches: "list[Launch]", clock: DeviceClock) -> float:
    """Time a candidate roughly; infinite where the library refuses to run what it offered."""
    from nvmath.bindings.cublasLt import cuBLASLtError

    try:
        clock.run_once(launches[0], what=name)
    except cuBLASLtError:
        return float("inf")

    def body(stream: int) -> None:
        for launch in launches:
            launch(stream)

    graph = clock.capture(body)
    replays = [
        clock.replay_us(graph, prepare=lambda: None, what=name) for _ in range(_TUNING_REPLAYS)
    ]
    return min(replays) / len(launches)
