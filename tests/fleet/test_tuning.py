"""Many keys through the passes: what is done is not done again, and few kernels serve many keys."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import seeds
from samples import TOOLS

from l2tune import fleet, generate
from l2tune import steps as steps_of_tuning
from l2tune.errors import InfrastructureError, UnsupportedProblemError
from l2tune.fleet.tuning import fewest
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled
from l2tune.spec.record import Record
from l2tune.stages import Bench
from l2tune.store import Chosen, Measured, Ranked

KEYS = [GemmKey.dense(64 * size, 64, 64, gpu=H200) for size in (1, 2, 3, 4, 5)]


class NoWorker:
    """Stands in for a worker process."""

    renewed = 0

    def renew(self) -> None:
        self.renewed += 1


class Steps:
    """Stands in for the pipeline's steps, and notes what was asked of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.failures: dict[tuple[str, int], list[BaseException]] = {}

    def _ask(self, step: str, key: GemmKey) -> None:
        self.asked.append((step, key.m))
        if failures := self.failures.get((step, key.m)):
            raise failures.pop(0)

    def prepare(self, key: GemmKey, **_: Any) -> list[Compiled]:
        self._ask("prepare", key)
        return [seeds.seed_record("sm80/naive", {}, key).verified.compiled]

    def search(self, compiled: Any, key: GemmKey, *, bench: Bench, check: bool) -> None:
        self._ask("search", key)
        assert not check
        bench.searches.put_ranked(ranked(key, naive=2.0))

    def choose(self, ranked: Any, key: GemmKey, *, bench: Bench) -> None:
        self._ask("choose", key)
        verified = seeds.seed_record("sm80/naive", {}, key).verified
        bench.searches.put_chosen(Chosen(verified=verified, triton=None, tools=TOOLS))

    def restore(self, chosen: Chosen, *, bench: Bench) -> None:
        self._ask("restore", chosen.verified.key)

    def settle(self, chosen: Chosen, *, bench: Bench, gap_us: float | None) -> Record:
        key = chosen.verified.key
        self._ask("settle", key)
        record = seeds.seed_record("sm80/naive", {}, key)
        bench.registry.put(record)
        return record

    def of(self, step: str) -> list[int]:
        return sorted(m for name, m in self.asked if name == step)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps()
    for step in ("prepare", "search", "choose", "restore", "settle"):
        monkeypatch.setattr(steps_of_tuning, step, getattr(made, step))
    monkeypatch.setattr("l2tune.fleet.tuning.tools", lambda: TOOLS)
    return made


@pytest.fixture
def benches(cache_dir: Path) -> fleet.Benches:
    two = [Bench(NoWorker(), cache_dir) for _ in range(2)]
    return fleet.Benches(two, two)


class Watch(fleet.Watch):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.passes: list[tuple[str, int]] = []
        self.records: list[Record] = []

    def begin(self, step: str, count: int) -> None:
        self.passes.append((step, count))

    def stored(self, record: Record) -> None:
        self.records.append(record)


def test_every_key_goes_through_every_step_once(steps: Steps, benches: fleet.Benches) -> None:
    watch = Watch()
    outcome = fleet.tune_all(KEYS, benches, watch=watch)
    assert (outcome.failed, outcome.left) == ({}, False)
    for step in ("prepare", "search", "choose", "settle"):
        assert steps.of(step) == [key.m for key in KEYS]
    assert {record.key for record in watch.records} == set(KEYS)
    assert [count for _, count in watch.passes] == [5, 5, 5]


def test_another_run_goes_on_where_one_was_stopped(steps: Steps, benches: fleet.Benches) -> None:
    assert fleet.tune_all(KEYS, benches, stop_after_s=-1.0).left
    assert steps.asked == []
    steps.failures = {("settle", key.m): [KeyboardInterrupt()] for key in KEYS}
    with pytest.raises(KeyboardInterrupt):
        fleet.tune_all(KEYS, benches)
    steps.asked.clear()
    steps.failures = {}
    fleet.tune_all(KEYS, benches)
    assert steps.of("search") == steps.of("choose") == []
    assert steps.of("settle") == [key.m for key in KEYS]


def test_a_key_that_fails_is_told_and_the_rest_go_on(steps: Steps, benches: fleet.Benches) -> None:
    steps.failures = {
        ("prepare", 64): [UnsupportedProblemError("no kernel admits it")],
        ("search", 128): [InfrastructureError("worker lost")],
        ("choose", 192): [InfrastructureError("lost"), InfrastructureError("lost again")],
    }
    watch = Watch()
    outcome = fleet.tune_all(KEYS, benches, watch=watch)
    assert outcome.failed == {KEYS[0]: "no kernel admits it", KEYS[2]: "lost again"}
    assert {record.key.m for record in watch.records} == {128, 256, 320}


def test_a_choice_that_compiles_to_something_else_is_made_anew(
    steps: Steps, benches: fleet.Benches
) -> None:
    steps.failures = {("restore", 128): [InfrastructureError("other machine code")]}
    outcome = fleet.tune_all(KEYS[:2], benches)
    assert outcome.failed == {KEYS[1]: "other machine code"}
    assert steps.of("settle") == [64]
    assert fleet.tune_all(KEYS[1:2], benches).failed == {}
    assert steps.of("choose") == [64, 128, 128]


def test_what_cannot_be_stored_ends_the_run(steps: Steps, benches: fleet.Benches) -> None:
    steps.failures = {("search", key.m): [OSError("disk full")] for key in KEYS}
    with pytest.raises(OSError, match="disk full"):
        fleet.tune_all(KEYS, benches)


def test_a_record_stays_unless_something_is_clearly_faster(
    steps: Steps, benches: fleet.Benches, monkeypatch: pytest.MonkeyPatch
) -> None:
    incumbents = {key: seeds.seed_record("sm80/naive", {}, key) for key in KEYS[:3]}
    text = incumbents[KEYS[0]].verified.compiled.source.text
    own = hashlib.sha256(text.encode()).hexdigest()
    others_us = {KEYS[0]: 1.5, KEYS[1]: 1.995, KEYS[2]: 3.0, KEYS[3]: 1.0}

    def search(compiled: Any, key: GemmKey, *, bench: Bench, check: bool) -> None:
        bench.searches.put_ranked(ranked(key, **{own: 2.0, "other": others_us[key]}))

    monkeypatch.setattr(steps_of_tuning, "search", search)
    fleet.tune_all(KEYS[:4], benches, incumbents=incumbents)
    assert steps.of("settle") == [KEYS[0].m, KEYS[3].m]


def ranked(key: GemmKey, **times_us: float) -> Ranked:
    found = (Measured(text=text, seed="s", values={}, us=us) for text, us in times_us.items())
    ordered = tuple(sorted(found, key=lambda one: one.us))
    seeds_now = generate.seeds_digest()
    return Ranked(key=key, torch_us=1.0, found=ordered, tools=TOOLS, seeds=seeds_now)


def test_few_kernels_are_picked_and_none_that_is_slower() -> None:
    picked = fewest([
        ranked(KEYS[0], a=1.0, b=1.002),
        ranked(KEYS[1], b=1.0, c=1.5),
        ranked(KEYS[2], c=1.0, a=1.02),
        ranked(KEYS[3]),
    ])  # fmt: skip
    assert picked == {KEYS[0]: "b", KEYS[1]: "b", KEYS[2]: "c"}


def test_a_search_among_other_seeds_is_made_again(steps: Steps, benches: fleet.Benches) -> None:
    old = ranked(KEYS[0], naive=1.0).model_copy(update={"seeds": "older"})
    searches = benches.timing[0].searches
    searches.put_ranked(old)
    searches.put_ranked(ranked(KEYS[1], naive=1.0))
    fleet.tune_all(KEYS[:2], benches)
    assert steps.of("search") == [KEYS[0].m]
    assert steps.of("settle") == [KEYS[0].m, KEYS[1].m]
