"""Rough times of many candidates, fast: what the search is guided by, and nothing is admitted by.

Successive halving: one short replay each, some more for the fastest third, and for the fastest few
of those as many as a first guess at noise asks for, with `torch.matmul` among them.
"""

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from l2tune.errors import InfrastructureError
from l2tune.measure import contestants, operands
from l2tune.measure.clock import DeviceClock
from l2tune.measure.contestants import TORCH, Contestant
from l2tune.measure.rounds import Rounds
from l2tune.measure.statistics import fastest
from l2tune.runtime.driver import KernelDied, LaunchRefusedError
from l2tune.runtime.worker import Worker, WorkerDied, retire_after_this_call
from l2tune.spec.geometry import overlaps_predecessor
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Verified
from l2tune.spec.roofline import floor_us, physical_minimum_us

_REPLAY_US, _MOST_SETS = 300.0, 24
"""The L2 is flushed before every replay; more sets would only take longer to capture."""
_BRIEF_REPLAYS, _ATTEMPTS = 1, 3
"""One replay may be disturbed, and a spacer's too: what physics forbids is timed again."""
_RUNGS = ((3.0, 4, 3), (8.0, 3, 8))
"""Each: which share of all goes on, how many at least, and how many replays they get."""
_WARMED_US = 100.0
"""Launches above this bring a GPU to its power limit, and who is timed before it is there wins."""
_HOPELESS_FACTOR = 10.0
_HOPELESS_US = 20000.0
_TIME_LIMIT_FACTOR = 4.0
_TIME_LIMIT_S = 120.0


@dataclasses.dataclass(frozen=True)
class Rough:
    """Rough times of a launch, microseconds.

    Attributes:
        times_us: Of each candidate; infinite where the driver refused it, it faulted or hung, or
            its turn did not come within the budget.
        torch_us: Of `torch.matmul`; infinite where its turn did not come.
    """

    times_us: list[float]
    torch_us: float


@dataclasses.dataclass
class Ranking:
    """What one process found out, in the order of the candidates it was given.

    Attributes:
        times_us: Microseconds of a launch; infinite if refused, None if not reached.
        torch_us: Of `torch.matmul`.
        died: The candidate that ended the process; its time is infinite.
    """

    times_us: list[float | None]
    torch_us: float = math.inf
    died: int | None = None


def quick_rank(
    worker: Worker,
    key: GemmKey,
    candidates: Sequence[Compiled | Verified],
    *,
    cache_dir: Path,
    budget_s: float,
    seed: int = 0,
) -> Rough:
    """Time many candidates roughly.

    Args:
        worker: Where.
        key: What they compute.
        candidates: What is timed; none is trusted to end.
        cache_dir: Where their cubins are.
        budget_s: When to stop.
        seed: Decides operands.

    Returns:
        The times, in the order of the candidates.

    Raises:
        InfrastructureError: If the worker failed.
    """
    compiled = [x.compiled if isinstance(x, Verified) else x for x in candidates]
    times_us: list[float | None] = [None] * len(compiled)
    waiting = list(range(len(compiled)))
    torch_us = math.inf
    deadline = time.monotonic() + budget_s
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        some = [compiled[index] for index in waiting]
        ranking = _call(worker, key, some, cache_dir, left_s, seed)
        torch_us = min(torch_us, ranking.torch_us)
        for index, found_us in zip(waiting, ranking.times_us, strict=True):
            times_us[index] = found_us
        waiting = [] if ranking.died is None else _unknown(waiting, times_us)
    return Rough([math.inf if us is None else us for us in times_us], torch_us)


def _unknown(indices: list[int], times_us: list[float | None]) -> list[int]:
    return [index for index in indices if times_us[index] is None]


def _call(
    worker: Worker,
    key: GemmKey,
    compiled: list[Compiled],
    cache_dir: Path,
    budget_s: float,
    seed: int,
) -> Ranking:
    limit_s = _TIME_LIMIT_S + _TIME_LIMIT_FACTOR * budget_s
    try:
        ranking: Ranking = worker.call(
            rank_here, key, compiled, cache_dir, budget_s, seed, timeout_s=limit_s
        )
    except WorkerDied as error:
        raise InfrastructureError(f"ranking {key}: {error}") from error
    except InfrastructureError:
        worker.renew()  # whatever it was, it may have left a context that no longer works
        raise
    return ranking


def rank_here(
    key: GemmKey, candidates: list[Compiled], cache_dir: Path, budget_s: float, seed: int
) -> Ranking:
    """Rank in the worker."""
    ranker = _Ranker(key, candidates, cache_dir, seed)
    try:
        with contestants.torch_sums_in(key.acc):
            ranker.rank(time.monotonic() + budget_s)
    except KernelDied as died:
        retire_after_this_call(died)
        if not ranker.rounds.running.isdecimal():
            raise InfrastructureError(f"{ranker.rounds.running} died: {died}") from died
        culprit = int(ranker.rounds.running)
        ranker.found.times_us[culprit] = math.inf
        return dataclasses.replace(ranker.found, died=culprit)
    return ranker.found


class _Ranker:
    """One ranking.

    Attributes:
        found: Times so far.
        rounds: Candidates are named by their positions.
    """

    def __init__(
        self, key: GemmKey, candidates: list[Compiled], cache_dir: Path, seed: int
    ) -> None:
        self.found = Ranking([None] * len(candidates))
        self._candidates, self._cache_dir = candidates, cache_dir
        self._sets = operands.sized(key, seed=seed, replay_us=_REPLAY_US, most=_MOST_SETS)
        self._clock = DeviceClock(key.flops, launches=self._sets.count)
        self._key, self._least_us = key, physical_minimum_us(key)
        self.rounds = Rounds(
            self._clock,
            self._sets,
            paired=any(_overlaps(compiled, key) for compiled in candidates),
            rng=random.Random(seed),
        )

    def rank(self, deadline_s: float) -> None:
        """Time each briefly, then ever fewer ever better, until the deadline."""
        if floor_us(self._key) > _WARMED_US:
            self.rounds.enter(contestants.torch_matmul(self._sets))
            self.rounds.warm_up()
            self.rounds.leave(TORCH)
        for index in range(len(self._candidates)):
            if time.monotonic() > deadline_s:
                return
            self.found.times_us[index] = self._brief_us(index)
        known = [math.inf if us is None else us for us in self.found.times_us]
        best = list(range(len(known)))
        for share, least, replays in _RUNGS:
            count = max(least, math.ceil(len(known) / share))
            best = [best[i] for i in fastest([known[index] for index in best], count)]
            if time.monotonic() > deadline_s:
                return
            self._repeat(best, replays)
            for index in best:
                known[index] = self.found.times_us[index] = self._median_us(str(index))

    def _brief_us(self, index: int) -> float:
        name = self.rounds.running = str(index)
        try:
            contestant = self._contestant(index)
            start = time.monotonic()
            self._clock.run_once(lambda stream: contestant.launch(0, stream), what=name)
            first_us = 1e6 * (time.monotonic() - start)
            if first_us > _HOPELESS_US and first_us > _HOPELESS_FACTOR * self._best_us():
                return first_us
            self.rounds.enter(contestant)
        except (LaunchRefusedError, ValueError, torch.OutOfMemoryError):
            return math.inf
        found_us = 0.0
        for attempt in range(_ATTEMPTS):
            for _ in range(_BRIEF_REPLAYS + (attempt == 0)):  # a first one uploads the graph
                self.rounds.run_one()
            found_us = self._median_us(name)
            if found_us > self._least_us:
                break
        self.rounds.leave(name)
        return found_us if found_us > self._least_us else math.inf

    def _repeat(self, best: Sequence[int], replays: int) -> None:
        """Time some with `torch.matmul` among them; who is no longer of them leaves."""
        names = {TORCH, *map(str, best)}
        for name in self.rounds.names - names:
            self.rounds.leave(name)
        if TORCH not in self.rounds.names:
            self.rounds.enter(contestants.torch_matmul(self._sets))
        for index in best:
            if str(index) not in self.rounds.names:
                self.rounds.enter(self._contestant(index))
        for _ in range(1 + replays):
            self.rounds.run_one()
        self.found.torch_us = self._median_us(TORCH)

    def _median_us(self, name: str) -> float:
        return statistics.median(self.rounds.samples_us(name)[1:])  # a first one uploads the graph

    def _contestant(self, index: int) -> Contestant:
        return contestants.kernel(
            self._candidates[index], self._sets, name=str(index), cache_dir=self._cache_dir
        )

    def _best_us(self) -> float:
        return min((us for us in self.found.times_us if us is not None), default=math.inf)


def _overlaps(compiled: Compiled, key: GemmKey) -> bool:
    try:
        return overlaps_predecessor(compiled, key.problem(), key.gpu)
    except ValueError:  # the contract has no value for the problem; timing it will say so
        return False
