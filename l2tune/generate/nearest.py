"""Which proven kernel a key may get that nothing was tuned for: a guess, fitted to the records.

A kernel's time is the cost model's guess, times what that was off by at the nearest records of the
kernel's family; torch.matmul's is the floor, times what torch was above it at the nearest records.
Sizes are compared in octaves. How far a guess may be trusted the records say themselves: each is
guessed without itself, and what was promised beyond what was measured there is the doubt.
Nothing here is stored or shown as a time.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from l2tune.generate.cost import estimate_us
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.problem import Problem
from l2tune.spec.record import Record
from l2tune.spec.roofline import floor_us

_NEIGHBOURS = 6
_FEWEST = 3
"""Records of a family below which its guesses are not corrected, and so not used."""
_SOFTENING = 0.25
"""Octaves within which one neighbour is as near as another."""
_JUDGED = 256
"""Records at most that are guessed without themselves."""
_KEPT_PROMISES = 0.95
_NOISE = 0.02
"""Two runs of one kernel differ by less; no gain below it is believed."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The best guess for a key.

    Attributes:
        record: One whose kernel it is; it was tuned for another key.
        us: What the kernel may take.
        torch_us: What `torch.matmul` may take.
        doubt: Share by which the gain may have been promised too high.
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

    def __init__(self, records: Iterable[Record]) -> None:
        """Sort the records; each group is fitted when it is first asked.

        Args:
            records: Those whose kernels may run here; no other kernel is ever chosen.
        """
        self._records: dict[_Pick, list[Record]] = {}
        for record in records:
            self._records.setdefault(_pick(record.key), []).append(record)
        self._groups: dict[_Pick, _Group] = {}

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
            self._groups[pick] = _Group(self._records[pick])
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

    def __init__(self, records: list[Record]) -> None:
        usable = [
            (record, off) for record in records if (off := _logs(record)) is not None
        ]  # fmt: skip
        self._records = [record for record, _ in usable]
        self._points = np.array([_point(record.key) for record, _ in usable]).reshape(-1, 5)
        logs = np.array([off for _, off in usable]).reshape(-1, 2)
        self._kernel, self._torch = logs[:, 0], logs[:, 1]
        families = np.array([record.verified.compiled.source.header.id for record, _ in usable])
        self._families = {str(name): np.flatnonzero(families == name) for name in set(families)}
        self._everything = np.arange(len(usable))
        digests = [record.verified.compiled.source.digest for record in self._records]
        self._kernels = dict(zip(digests, self._records, strict=True))
        self._uses = Counter(digests)
        self._typical = max(_NOISE, float(np.std(self._kernel - self._torch))) if usable else 0.0
        self._excess = self._broken_promises()

    def choose(self, key: GemmKey, problem: Problem) -> Choice | None:
        best = self._best(key, problem)
        if best is None:
            return None
        doubt = math.expm1(min(700.0, max(_NOISE, self._excess * best.unsure)))
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
        families = {
            name: _nearby(distances, rows, self._kernel, without)
            for name, rows in self._families.items()
        }
        only = None if without is None else _digest(self._records[without])
        for digest, record in self._kernels.items():
            source = record.verified.compiled.source
            near, guess_us = families[source.header.id], _guess_us(source, key)
            if near is None or guess_us is None or (digest == only and self._uses[digest] == 1):
                continue
            spread = self._typical + math.hypot(near.spread, torch.spread)
            yield _Guess(
                record, math.log(guess_us) + near.mean, math.log(floor) + torch.mean,
                spread * (1.0 + near.distance),
            )  # fmt: skip

    def _broken_promises(self) -> float:
        """How many times `unsure` the promised gain was too high, at most, in most records.

        The kernel chosen without a record can hardly beat that record's own, the best of a search:
        to hold its promise against the record's gain counts the optimism of choosing, too. Too few
        records make it infinite.
        """
        judged = np.unique(np.linspace(0, len(self._records) - 1, _JUDGED).astype(int))
        found = []
        for index in judged.tolist() if self._records else []:
            record = self._records[index]
            best = self._best(record.key, record.key.problem(), without=index)
            if best is not None:
                promised = best.log_torch_us - best.log_us
                found.append((promised - math.log(record.outcome.timing.speedup)) / best.unsure)
        rank = math.ceil(_KEPT_PROMISES * (len(found) + 1))
        return sorted(found)[rank - 1] if rank <= len(found) else math.inf


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


def _logs(record: Record) -> tuple[float, float] | None:
    """The logarithms of measured over guessed time, of the kernel and of torch."""
    guess_us = _guess_us(record.verified.compiled.source, record.key)
    floor, timing = floor_us(record.key), record.outcome.timing
    if guess_us is None or not floor:
        return None
    return math.log(timing.gpu.us / guess_us), math.log(timing.baselines["torch"].us / floor)


def _guess_us(source: KernelSource, key: GemmKey) -> float | None:
    """The cost model's guess; None for a kernel that it does not describe."""
    try:
        guess_us = estimate_us(source.header.id, source.tunables, key)
    except (KeyError, ZeroDivisionError):  # a file of a seed's name with other tunables
        return None
    return guess_us if 0.0 < guess_us < math.inf else None


def _digest(record: Record) -> str:
    return record.verified.compiled.source.digest
