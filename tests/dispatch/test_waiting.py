"""A call that a pack's kernel could serve has it re-checked, in another process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from l2tune.dispatch import plan, waiting
from l2tune.dispatch.shapes import product
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.store import Pending

KEY, OTHER = (GemmKey.dense(64, n, 64, gpu=H200) for n in (64, 128))


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> Iterator[None]:
    monkeypatch.setattr(waiting, "_rechecking", None)
    monkeypatch.setattr(plan, "detect", lambda device=0: H200)
    plan.forget_loaded()
    yield
    if waiting._rechecking is not None:
        waiting._rechecking.kill()
        waiting._rechecking.wait()


def plan_for(n: int) -> plan.Plan | None:
    wanted = product((64, 64), (64, 1), (64, n), (n, 1), address_bits=0)
    return plan.plan_for(wanted, torch.float16, 0)


def test_without_packs_nothing_is_asked_or_started(cache_dir: Path) -> None:
    assert plan_for(64) is None
    assert waiting._rechecking is None
    assert not (cache_dir / "packs").exists()


def test_a_kernel_that_waits_is_asked_for_and_does_not_serve(cache_dir: Path) -> None:
    pending = Pending(cache_dir)
    pending.put(KEY, "text")
    assert plan_for(128) is None
    assert (waiting._rechecking, pending.asked()) == (None, [])
    assert plan_for(64) is None
    assert pending.asked() == [KEY]
    started = waiting._rechecking
    assert started is not None
    pending.put(OTHER, "text")
    assert plan_for(128) is None
    assert waiting._rechecking is started or started.poll() is not None
    assert sorted(map(str, pending.asked())) == sorted(map(str, (KEY, OTHER)))
    if not torch.cuda.is_available():  # where there is no GPU the process leaves all as it is
        assert started.wait(timeout=60) == 0
        assert len(pending.keys()) == 2
