"""Kernels that sum in float16 serve float16 calls under torch's flag for that, and no others."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import seeds
import torch

from l2tune.dispatch import plan
from l2tune.runtime.versions import tools
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.store import Registry

matmul = importlib.import_module("l2tune.dispatch.matmul")
SINGLE = GemmKey.dense(512, 768, 512, gpu=H200)
HALF = SINGLE.model_copy(update={"acc": "float16"})
BFLOAT = SINGLE.model_copy(update={"dtype": "bfloat16"})
OF_SINGLE, OF_HALF = ("sm90a/wgmma_persistent", "sm90a/wgmma_half")


class Bound:
    """A kernel bound to the problem, which nobody launches."""

    workspace_bytes, workspace_zeroed = 0, False

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> Iterator[None]:
    """An H200 that launches nothing."""
    plan_for = plan.plan_for
    monkeypatch.setattr(
        plan, "plan_for",
        lambda product, dtype, _, half_sums: plan_for(product, dtype, 0, half_sums=half_sums),
    )  # fmt: skip
    monkeypatch.setattr(plan, "detect", lambda device=0: H200)
    monkeypatch.setattr(plan, "_bound", lambda made, *_: Bound(made.source.header.id))
    monkeypatch.setattr(plan.native, "build_in_background", lambda: None)
    monkeypatch.setattr(matmul, "_capturing", lambda: False)
    matmul.reset()
    yield
    matmul.reset()


def put(registry: Registry, *keys: GemmKey) -> None:
    for key in keys:
        half = key.acc == "float16"
        values = seeds.WGMMA_HALF if half else seeds.WGMMA
        record = seeds.seed_record(OF_HALF if half else OF_SINGLE, {**values, "CLUSTER": 1}, key)
        registry.put(record.model_copy(update={"tools": tools()}))


def served(dtype: torch.dtype = torch.float16) -> str | None:
    """The family whose kernel a call gets."""
    a, b = torch.ones(512, 512, dtype=dtype), torch.ones(512, 768, dtype=dtype)
    found = matmul._make(matmul._key(a, b, None, 0), a, b, None, 0)
    return None if found is None else found.bound.name


@pytest.mark.parametrize(
    ("records", "off", "on"),
    [
        ([HALF], None, OF_HALF),
        ([SINGLE], OF_SINGLE, OF_SINGLE),
        ([SINGLE, HALF], OF_SINGLE, OF_HALF),
        ([], None, None),
    ],
)
def test_the_flag_decides_which_record_serves(records, off, on, cache_dir, allow_half_sums):
    put(Registry(cache_dir), *records)
    for allowed, expected in ((False, off), (True, on), (False, off)):
        allow_half_sums(allowed)
        assert served() == expected


def test_the_flag_says_nothing_of_bfloat16(cache_dir, allow_half_sums):
    put(Registry(cache_dir), BFLOAT)
    allow_half_sums(True)
    assert served(torch.bfloat16) == OF_SINGLE


@pytest.mark.parametrize(("allowed", "wanted"), [(False, SINGLE), (True, HALF)])
def test_a_miss_is_of_the_sums_that_were_allowed(allowed, wanted, cache_dir, allow_half_sums):
    allow_half_sums(allowed)
    assert served() is None
    assert Registry(cache_dir).wanted() == [(wanted, 1)]


def test_a_plan_of_half_sums_is_not_found_without_the_flag(cache_dir, allow_half_sums):
    put(Registry(cache_dir), HALF)
    a, b = torch.ones(512, 512).half(), torch.ones(512, 768).half()
    allow_half_sums(True)
    key = matmul._key(a, b, None, 0)
    assert matmul._make(key, a, b, None, 0) is matmul._table[key] is not None
    allow_half_sums(False)
    assert matmul._key(a, b, None, 0) not in matmul._table
