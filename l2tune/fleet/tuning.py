"""Tune many keys: search all, then prove what was found, then confirm it.

Three passes, so that what may share a GPU (proving) and what may not (timing) do not wait for each
other, and a kernel that many keys chose is proven once. A pass skips what an earlier run has done.
"""

import dataclasses
import functools
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from l2tune import generate, steps
from l2tune.errors import InfrastructureError, UnsupportedProblemError
from l2tune.fleet.benches import Benches
from l2tune.runtime.pool import map_over
from l2tune.runtime.versions import tools
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import Dtype, GemmKey, Layout
from l2tune.spec.outcome import Compiled
from l2tune.spec.record import Record
from l2tune.stages import Bench
from l2tune.store import Chosen, Ranked

Offered = Callable[[GemmKey], list[KernelSource]]
Result = TypeVar("Result")

_SPREAD = 8
"""One key in eight comes first, with many candidates; what they show guides the rest."""
_WIDE, _NARROW = 64, 48
_FITTED_PRODUCTS, _WIDE_IF_FITTED, _NARROW_IF_FITTED = 500, 48, 32
"""Where the model knows so many products of the GPU, an instance within 1 % of the fastest is among
its first 16 for 99 of 100 others (`scripts/fit.py`)."""
_KEYS_BEFORE_FIT = 32
"""The model is fitted anew after so many keys, then whenever they have doubled."""
_CLEARLY = 1.01
"""A record's kernel gives way to one that is roughly timed to be faster by more than this."""
_AS_FAST = 1.005
"""Of two rough times, what is not worth another kernel."""


class Watch:
    """Is told how it goes; does nothing by itself. Called from several threads, one at a time."""

    def begin(self, step: str, count: int) -> None:
        """A pass over `count` keys begins."""

    def done(self, key: GemmKey) -> None:
        """A key has been through the pass, or failed."""

    def stored(self, record: Record) -> None:
        """A record was stored."""


@dataclasses.dataclass
class Outcome:
    """What became of the keys.

    Attributes:
        failed: Why, for keys that no kernel serves or on which the machine failed twice.
        left: Whether time ran out before all were done; another run goes on.
    """

    failed: dict[GemmKey, str] = dataclasses.field(default_factory=dict)
    left: bool = False


def tune_all(
    keys: Sequence[GemmKey],
    benches: Benches,
    *,
    offered: Offered | None = None,
    incumbents: Mapping[GemmKey, Record] | None = None,
    watch: Watch | None = None,
    stop_after_s: float = float("inf"),
    gap_us: float | None = None,
) -> Outcome:
    """Store a record for each key.

    Args:
        keys: Of one GPU model.
        benches: Where to run.
        offered: Kernels to choose among, in the place of the seeds.
        incumbents: Records that stay where the search finds nothing faster beyond its noise; their
            kernels are timed with the others.
        watch: Is told how it goes.
        stop_after_s: After so many seconds no key is begun.
        gap_us: Mean gap of single calls at random, microseconds; None times none.

    Raises:
        CacheError: If results cannot be stored.
    """
    fleet = _Fleet(
        benches, offered, incumbents or {}, watch or Watch(), time.monotonic() + stop_after_s
    )
    fleet.search(keys)
    fleet.prove(keys)
    fleet.confirm(keys, gap_us)
    return fleet.outcome


class _Fleet:
    def __init__(
        self,
        benches: Benches,
        offered: Offered | None,
        incumbents: Mapping[GemmKey, Record],
        watch: Watch,
        deadline: float,
    ) -> None:
        self.outcome = Outcome()
        self._offered, self._incumbents = offered, incumbents
        self._benches, self._watch, self._deadline = benches, watch, deadline
        self._tools = tools()
        self._lock = threading.Lock()

    def search(self, keys: Sequence[GemmKey]) -> None:
        """Rough times, each GPU on a key of its own; candidates are compiled a little ahead."""
        searches = self._benches.timing[0].searches
        wanted = [
            key
            for key in keys
            if searches.chosen(key, self._tools) is None and self._ranked(key) is None
        ]
        self._watch.begin("timing candidates", len(wanted))
        if not wanted:
            return
        places = self._benches.timing
        ready: queue.Queue[tuple[GemmKey, list[Compiled]] | None] = queue.Queue(2 * len(places))
        with ThreadPoolExecutor(1) as ahead:
            preparing = ahead.submit(self._prepare_all, wanted, ready, len(places))
            map_over(places, lambda bench, _: self._search_ready(bench, ready), places)
            preparing.result()

    def _prepare_all(
        self,
        keys: Sequence[GemmKey],
        ready: "queue.Queue[tuple[GemmKey, list[Compiled]] | None]",
        readers: int,
    ) -> None:
        first, bench = keys[::_SPREAD], self._benches.timing[0]
        rest = [key for index, key in enumerate(keys) if index % _SPREAD]
        model = steps.fitted(keys[0].gpu, bench=bench)
        wide, narrow, fit_at = _WIDE, _NARROW, _KEYS_BEFORE_FIT
        if model.products >= _FITTED_PRODUCTS:
            wide, narrow = _WIDE_IF_FITTED, _NARROW_IF_FITTED
        try:
            for index, key in enumerate([*first, *rest]):
                if self._late():
                    break
                if index == fit_at:
                    model, fit_at = steps.fitted(key.gpu, bench=bench), 2 * fit_at
                count = wide if index < len(first) else narrow
                prepare = functools.partial(self._prepare, key=key, model=model, count=count)
                if (compiled := self._try(bench, key, prepare)) is not None:
                    ready.put((key, compiled))
                else:
                    self._done(key)
        finally:
            for _ in range(readers):
                ready.put(None)

    def _prepare(
        self, bench: Bench, *, key: GemmKey, model: generate.Fitted, count: int
    ) -> list[Compiled]:
        offered = None if self._offered is None else self._offered(key)
        incumbent = self._incumbents.get(key)
        also = [] if incumbent is None else [incumbent.verified.compiled.source]
        return steps.prepare(key, bench=bench, model=model, offered=offered, also=also, count=count)

    def _search_ready(
        self, bench: Bench, ready: "queue.Queue[tuple[GemmKey, list[Compiled]] | None]"
    ) -> None:
        try:
            while (item := ready.get()) is not None:
                key, compiled = item
                self._try(bench, key, functools.partial(self._search, key=key, compiled=compiled))
                self._done(key)
        except BaseException:
            self.outcome.left = True  # who prepares keys must not wait for us
            while ready.get() is not None:
                pass
            raise

    def _search(self, bench: Bench, *, key: GemmKey, compiled: list[Compiled]) -> None:
        steps.search(compiled, key, bench=bench, check=self._offered is not None)

    def prove(self, keys: Sequence[GemmKey]) -> None:
        """The whole gate for a kernel's first key; then, as it is known, the rest of its keys."""
        searches = self._benches.timing[0].searches
        wanted = [
            ranked
            for key in keys
            if key not in self.outcome.failed and searches.chosen(key, self._tools) is None
            if (ranked := self._ranked(key)) is not None
            if not self._stays(ranked)
        ]
        self._watch.begin("proving", len(wanted))
        picked = fewest(wanted)
        firsts: dict[tuple[str, Layout, Dtype], GemmKey] = {}
        for ranked in sorted(wanted, key=lambda ranked: ranked.key.flops):
            key = ranked.key
            firsts.setdefault((picked.get(key, ""), key.layout, key.dtype), key)
        by_key = {ranked.key: ranked for ranked in wanted}

        def choose(bench: Bench, key: GemmKey) -> None:
            found = steps.searched(by_key[key], bench=bench, first=picked.get(key))
            steps.choose(found, key, bench=bench)

        self._over(self._benches.proving, list(firsts.values()), choose)
        known = set(firsts.values())
        self._over(self._benches.proving, [key for key in by_key if key not in known], choose)

    def _ranked(self, key: GemmKey) -> Ranked | None:
        """What the search of this version found, with the seeds as they are."""
        ranked = self._benches.timing[0].searches.ranked(key, self._tools)
        return ranked if ranked is not None and ranked.seeds == generate.seeds_digest() else None

    def _stays(self, ranked: Ranked) -> bool:
        """Whether the kernel of the key's record was timed too, and nothing was clearly faster."""
        incumbent = self._incumbents.get(ranked.key)
        if incumbent is None:
            return False
        text = hashlib.sha256(incumbent.verified.compiled.source.text.encode()).hexdigest()
        own_us = next((found.us for found in ranked.found if found.text == text), None)
        return own_us is not None and own_us <= _CLEARLY * ranked.found[0].us

    def confirm(self, keys: Sequence[GemmKey], gap_us: float | None) -> None:
        """Beside every baseline, in processes that had no part in choosing."""
        searches = self._benches.timing[0].searches
        wanted = {
            key: chosen
            for key in keys
            if key not in self.outcome.failed
            if (chosen := searches.chosen(key, self._tools)) is not None
        }
        self._restore(wanted)
        self._watch.begin("confirming", len(wanted))
        for bench in (*self._benches.timing, *self._benches.proving):
            bench.worker.renew()  # and what provers held of the GPU's memory is free

        def settle(bench: Bench, key: GemmKey) -> None:
            record = steps.settle(wanted[key], bench=bench, gap_us=gap_us)
            with self._lock:
                self._watch.stored(record)

        self._over(self._benches.timing, list(wanted), settle)

    def _restore(self, wanted: dict[GemmKey, Chosen]) -> None:
        """Have the machine code of all choices in the cache; those of which that fails leave."""
        bench = self._benches.timing[0]

        def restore(key: GemmKey) -> None:
            try:
                steps.restore(wanted[key], bench=bench)
            except InfrastructureError as error:
                self.outcome.failed[key] = str(error)
                bench.searches.forget_choice(key)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(restore, list(wanted)))
        for key in self.outcome.failed.keys() & wanted.keys():
            del wanted[key]

    def _over(
        self,
        places: Sequence[Bench],
        keys: Iterable[GemmKey],
        function: Callable[[Bench, GemmKey], object],
    ) -> None:
        def one(bench: Bench, key: GemmKey) -> None:
            if not self._late():
                self._try(bench, key, lambda b: function(b, key))
                self._done(key)

        map_over(places, one, keys)

    def _try(
        self, bench: Bench, key: GemmKey, function: Callable[[Bench], Result]
    ) -> Result | None:
        """Once more in a fresh worker where the machine and no kernel failed."""
        try:
            try:
                return function(bench)
            except InfrastructureError:
                bench.worker.renew()
                return function(bench)
        except (InfrastructureError, UnsupportedProblemError) as error:
            self.outcome.failed[key] = str(error)
            return None

    def _done(self, key: GemmKey) -> None:
        with self._lock:
            self._watch.done(key)

    def _late(self) -> bool:
        self.outcome.left |= time.monotonic() > self._deadline
        return self.outcome.left


def fewest(wanted: Sequence[Ranked]) -> dict[GemmKey, str]:
    """Pick for each key a kernel within rough timing's noise of its fastest, and few in all.

    Greedy: the kernel that most keys could take is given to all of them, until none is left. Fewer
    kernels are fewer proofs, and a smaller pack.

    Returns:
        The text's SHA-256 by key; keys for which nothing was timed are left out.
    """
    could: dict[tuple[str, Layout, Dtype], set[GemmKey]] = {}
    for ranked in wanted:
        for found in ranked.found:
            if found.us <= _AS_FAST * ranked.found[0].us:
                kernel = (found.text, ranked.key.layout, ranked.key.dtype)
                could.setdefault(kernel, set()).add(ranked.key)
    picked: dict[GemmKey, str] = {}
    while could:
        kernel = max(could, key=lambda name: (len(could[name]), name))
        keys = could.pop(kernel)
        picked |= dict.fromkeys(keys, kernel[0])
        could = {name: rest for name, others in could.items() if (rest := others - keys)}
    return picked
