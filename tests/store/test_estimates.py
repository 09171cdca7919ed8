"""What a model guessed is kept apart from what was measured."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from samples import TOOLS, estimated, record

from l2tune.dispatch import plan
from l2tune.dispatch.shapes import product
from l2tune.errors import CacheError
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.spec.record import Record
from l2tune.store import Registry

KEY = GemmKey.dense(64, 64, 64, gpu=H200)
OTHER = GemmKey.dense(128, 64, 64, gpu=H200)


@pytest.fixture
def registry(cache_dir: Path) -> Registry:
    return Registry(cache_dir)


def test_an_estimate_reads_back_equal_through_another_connection(registry, cache_dir):
    registry.put_estimate(estimated(KEY))
    assert Registry(cache_dir).get_estimate(KEY) == estimated(KEY)
    assert list(Registry(cache_dir).estimates()) == [estimated(KEY)]
    assert registry.get_estimate(OTHER) is None


def test_an_estimate_and_a_record_of_one_key_leave_each_other_alone(registry):
    registry.put(record(KEY))
    registry.put_estimate(estimated(KEY, us=0.001))
    registry.put(record(KEY, "// faster\n"))
    registry.put_estimate(estimated(KEY))
    assert registry.get(KEY) == record(KEY, "// faster\n")
    assert list(registry.records()) == [record(KEY, "// faster\n")]
    assert list(registry.estimates()) == [estimated(KEY)]
    registry.forget(KEY)
    assert registry.get(KEY) is None
    assert registry.get_estimate(KEY) == estimated(KEY)


def test_a_key_that_is_only_estimated_is_still_wanted(registry):
    registry.miss(KEY)
    registry.put_estimate(estimated(KEY))
    assert registry.wanted() == [(KEY, 1)]


def test_no_record_can_hold_an_estimate(registry):
    found = estimated(KEY)
    with pytest.raises(ValidationError):
        Record(
            key=KEY, outcome=found.outcome, origin=found.origin, tools=TOOLS, created="2026-11-30"
        )
    with pytest.raises(CacheError, match="is not stored"):
        registry.put(found)


def test_an_estimate_with_another_key_s_proof_is_not_stored(registry):
    with pytest.raises(CacheError, match="with a proof for"):
        registry.put_estimate(estimated(KEY).model_copy(update={"key": OTHER}))


def test_dispatch_runs_records_and_never_estimates(registry, monkeypatch):
    class Bound(Exception):
        pass

    def bind(*_):
        raise Bound

    monkeypatch.setattr(plan, "detect", lambda device=0: H200)
    monkeypatch.setattr(plan, "tools", lambda: TOOLS)
    monkeypatch.setattr(plan, "_bound", bind)
    wanted = product((64, 64), (64, 1), (64, 64), (64, 1), address_bits=0)
    dtype = next(iter(plan._DTYPES))
    key = KEY.model_copy(update={"dtype": plan._DTYPES[dtype]})
    registry.put_estimate(estimated(key))
    plan.forget_loaded()
    assert plan.plan_for(wanted, dtype, 0) is None
    registry.put(record(key))
    with pytest.raises(Bound):
        plan.plan_for(wanted, dtype, 0)
