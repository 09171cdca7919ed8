"""Which proven kernel a key may get that nothing was tuned for: a guess, fitted to the records.

A kernel's time is the search's own model (`l2tune.generate.fitted`), fitted to the records and to
rough times; torch.matmul's is the floor, times what torch was above it at the nearest records.
Sizes are compared in octaves. How large a promised gain must be to be believed the records say
themselves: each is guessed without itself, and promises as large may seldom have been broken there.
Nothing here is stored or shown as a time.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from l2tune.generate.fitted import Fitted
from l2tune.generate.space import completed, fit
from l2tune.spec.key import GemmKey
from l2tune.spec.problem import Problem
from l2tune.spec.record import Record
from l2tune.spec.roofline import floor_us

_NEIGHBOURS = 6
_FEWEST = 3
"""Records below which torch's time is not guessed."""
_REACH = 1.5
"""Octaves within which what was measured says something of a kernel: farther costs time here."""
_SOFTENING = 0.25
"""Octaves within which one neighbour is as near as another."""
_JUDGED = 160
"""Records at most that are guessed without themselves."""
_BROKEN = 0.03
"""Share of promises that may have been broken, counting one more than there are."""
_NOISE = 0.02
"""Two runs of one kernel differ by less; no gain below it is believed."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The best guess for a key.

    Attributes:
        record: One whose kernel it is; it was tuned for another key.
        us: What the kernel may take.
        torch_us: What `torch.matmul` may take.
        doubt: Share that the promised gain must exceed to be believed.
    """

    record: Record
    us: float
    torch_us: float
    doubt: float

    @property
    def serves(self) -> bool:
        """Whether the kernel is to run, for it is faster even if the doubt is right."""
        return self.torch_us > self.us * (1.0 + self.doubt)


class Nearest:
    """What a cache's records say of keys that it has no record for."""

    def __init__(
        self,
        records: Iterable[Record],
        measured: Iterable[tuple[str, Mapping[str, int], GemmKey, float]] = (),
    ) -> None:
        """Sort the records; each group is fitted when it is first asked.

        Args:
            records: Those whose kernels may run here; no other kernel is ever chosen.
            measured: Further times of instances on this GPU model: seed, tunables, product,
                microseconds. Of any layout: they differ little.
        """
        self._records: dict[_Pick, list[Record]] = {}
        for record in records:
            self._records.setdefault(_pick(record.key), []).append(record)
        self._groups: dict[_Pick, _Group] = {}
        own = (_measured(record) for some in self._records.values() for record in some)
        self._fitted = fit(itertools.chain(measured, own))

    def choose(self, key: GemmKey, problem: Problem | None = None) -> Choice | None:
        """Guess the fastest kernel for `key`, and how it compares with `torch.matmul`.

        Args:
            key: What to compute.
            problem: With the very strides of the call; by default dense up to the key's alignment.

        Returns:
            None where no kernel admits the problem, or too little is known to guess.
        """
        pick = _pick(key)
        if pick not in self._records:
            return None
        if pick not in self._groups:
            self._groups[pick] = _Group(self._records[pick], self._fitted)
        return self._groups[pick].choose(key, problem or key.problem())


_Pick = tuple[str, ...]


def _pick(key: GemmKey) -> _Pick:
    """What two keys must share for a kernel or a time of one to say anything of the other."""
    return str(key.gpu), key.dtype, key.layout, key.acc, key.epilogue


@dataclasses.dataclass(frozen=True)
class _Nearby:
    """What the nearest records say of a logarithm: weighted mean, their spread, their distance."""

    mean: float
    spread: float
    distance: float


@dataclasses.dataclass(frozen=True)
class _Guess:
    record: Record
    log_us: float
    log_torch_us: float
    unsure: float


class _Group:
    """The records of one pick, as points in octaves with two logarithms each."""

    def __init__(self, records: list[Record], fitted: Fitted) -> None:
        self._records = [record for record in records if floor_us(record.key)]
        self._fitted = fitted
        self._points = np.array([_point(record.key) for record in self._records]).reshape(-1, 5)
        self._torch = np.array([_above_floor(record) for record in self._records])
        self._everything = np.arange(len(self._records))
        digests = [_digest(record) for record in self._records]
        self._uses = Counter(digests)
        self._kernels: dict[str, list[Record]] = {}
        self._tunables: dict[str, dict[str, int]] = {}
        for digest, record in dict(zip(digests, self._records, strict=True)).items():
            source = record.verified.compiled.source
            if (tunables := completed(source.header.id, source.tunables)) is not None:
                self._kernels.setdefault(source.header.id, []).append(record)
                self._tunables[digest] = tunables
        self._least = self._least_promise()

    def choose(self, key: GemmKey, problem: Problem) -> Choice | None:
        best = self._best(key, problem)
        if best is None:
            return None
        doubt = math.expm1(min(700.0, max(_NOISE, self._least * best.unsure)))
        return Choice(best.record, math.exp(best.log_us), math.exp(best.log_torch_us), doubt)

    def _best(self, key: GemmKey, problem: Problem, without: int | None = None) -> _Guess | None:
        """The likely fastest kernel that admits the problem; time counts as more where unsure.

        Args:
            key: What to compute.
            problem: Likewise.
            without: A record to leave out, with its kernel if no other record has it.
        """
        ranked = sorted(self._guesses(key, without), key=lambda guess: guess.log_us + guess.unsure)
        return next(
            (g for g in ranked if g.record.verified.compiled.source.accepts(problem, key.gpu)), None
        )

    def _guesses(self, key: GemmKey, without: int | None) -> Iterator[_Guess]:
        distances = np.sqrt(((self._points - _point(key)) ** 2).sum(axis=1))
        torch = _nearby(distances, self._everything, self._torch, without)
        floor = floor_us(key)
        if torch is None or not floor:
            return
        unsure = (_NOISE + torch.spread) * (1.0 + torch.distance)
        only = None if without is None else _digest(self._records[without])
        for seed_id, records in self._kernels.items():
            guesses_us = self._guesses_us(seed_id, records, key, itself=without is None)
            for record, guess_us in zip(records, guesses_us, strict=True):
                own = _digest(record) == only and self._uses[_digest(record)] == 1
                if guess_us < math.inf and not own:
                    us = max(guess_us, floor)
                    yield _Guess(record, math.log(us), math.log(floor) + torch.mean, unsure)

    def _guesses_us(
        self, seed_id: str, records: list[Record], key: GemmKey, *, itself: bool
    ) -> list[float]:
        """Of the kernels of some records of a seed, on another product."""
        instances = [self._tunables[_digest(record)] for record in records]
        return self._fitted.estimates_us(seed_id, instances, key, reach=_REACH, itself=itself)

    def _least_promise(self) -> float:
        """How many times `unsure` a promised gain must be, so that few kernels served are slower.

        Records are guessed without themselves, their kernels' times on the very product too. What
        the chosen kernel really takes there is then guessed with all that is known of it. From the
        largest promise down, the last one is taken up to which hardly any was broken: the kernel
        was slower than torch. Too few records make it infinite.
        """
        judged = np.unique(np.linspace(0, len(self._records) - 1, _JUDGED).astype(int))
        found: list[tuple[float, bool]] = []
        for index in judged.tolist() if self._records else []:
            key = self._records[index].key
            best = self._best(key, key.problem(), without=index)
            if best is not None:
                seed_id = best.record.verified.compiled.source.header.id
                (us,) = self._guesses_us(seed_id, [best.record], key, itself=True)
                torch_us = floor_us(key) * math.exp(float(self._torch[index]))
                promise = (best.log_torch_us - best.log_us) / best.unsure
                found.append((promise, us > torch_us))
        least, broken = math.inf, 0
        for count, (promise, slower) in enumerate(sorted(found, reverse=True), 1):
            broken += slower
            if (broken + 1) / (count + 1) <= _BROKEN:
                least = promise if count < len(found) else 0.0  # nothing is known against less
        return max(least, 0.0)


def _nearby(
    distances: np.ndarray, rows: np.ndarray, logs: np.ndarray, without: int | None
) -> _Nearby | None:
    """The nearest few among `rows`; None where there are too few."""
    if without is not None:
        rows = rows[rows != without]
    if len(rows) < _FEWEST:
        return None
    if len(rows) > _NEIGHBOURS:
        rows = rows[np.argpartition(distances[rows], _NEIGHBOURS - 1)[:_NEIGHBOURS]]
    weights = (distances[rows] + _SOFTENING) ** -2.0
    weights /= weights.sum()
    mean = float(weights @ logs[rows])
    spread = math.sqrt(float(weights @ (logs[rows] - mean) ** 2))
    return _Nearby(mean, spread, float(weights @ distances[rows]))


def _point(key: GemmKey) -> tuple[float, ...]:
    """Sizes and alignment in octaves: memory that lies otherwise is as far away as another size."""
    return tuple(math.log2(x) for x in (key.m, key.n, key.k, key.batch, key.align))


def _above_floor(record: Record) -> float:
    """The logarithm of torch's time over the floor."""
    return math.log(record.outcome.timing.baselines["torch"].us / floor_us(record.key))


def _measured(record: Record) -> tuple[str, Mapping[str, int], GemmKey, float]:
    source = record.verified.compiled.source
    return source.header.id, source.tunables, record.key, record.outcome.timing.gpu.us


def _digest(record: Record) -> str:
    return record.verified.compiled.source.digest
