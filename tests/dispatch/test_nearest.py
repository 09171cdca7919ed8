"""The policy `nearest`: what it serves, after which trial, and what it remembers.

A stand-in launches: it reads and writes the operands' memory by address, as a kernel does.
"""

import ctypes
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import tuned

from l2tune import settings
from l2tune.dispatch import nearest, plan
from l2tune.dispatch.plan import NativePlan
from l2tune.errors import DispatchWarning
from l2tune.runtime.versions import tools
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.store import Registry

matmul = importlib.import_module("l2tune.dispatch.matmul")
KEY = GemmKey.dense(96, 512, 200, gpu=H200)


class Stand:
    """A bound kernel of dense row-major float16 operands."""

    workspace_bytes, workspace_zeroed = 0, False

    def __init__(self) -> None:
        self.runs, self.factor, self.raises = 0, 1.0, None
        self.bound = []

    def bind(self, compiled, product, *_):
        self.bound.append((compiled, product.problem))
        return self

    def __call__(self, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        self.runs += 1
        if self.raises:
            raise self.raises
        p = self.bound[-1][1]
        x, y, z = (
            torch.frombuffer((ctypes.c_char * (2 * r * w)).from_address(at), dtype=torch.float16)
            .view(r, w)
            for at, r, w in ((a, p.m, p.k), (b, p.k, p.n), (c, p.m, p.n))
        )  # fmt: skip
        z.copy_(x.float() @ y.float() * self.factor)

    def describe(self, address: int) -> tuple[()]:
        return ()


class Loaded:
    """The native path's library, as far as tables go."""

    def clear(self) -> None:
        pass


@pytest.fixture(autouse=True)
def stand(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> Iterator[Stand]:
    """An H200 whose launches the stand-in makes, under the policy."""
    made, plan_for = Stand(), plan.plan_for
    monkeypatch.setattr(
        plan, "plan_for",
        lambda product, dtype, _, half_sums: plan_for(product, dtype, 0, half_sums=half_sums),
    )  # fmt: skip
    monkeypatch.setattr(plan, "detect", lambda device=0: H200)
    monkeypatch.setattr(plan, "_bound", made.bind)
    monkeypatch.setattr(plan.native, "build_in_background", lambda: None)
    monkeypatch.setattr(plan.native, "loaded", Loaded())
    monkeypatch.setattr(matmul, "_raw_stream", lambda device: 0)
    monkeypatch.setattr(matmul, "_capturing", lambda: False)
    monkeypatch.setattr(nearest, "_withdrawn", set())
    matmul.reset()
    with settings.override(policy="nearest"):
        yield made
    matmul.reset()


@pytest.fixture
def registry(cache_dir: Path) -> Registry:
    """Of a cache in which kernels beat torch nine to one."""
    made = Registry(cache_dir)
    for record in tuned.records(torch_off=lambda _: 9.0, tools=tools()):
        made.put(record)
    return made


def call(key: GemmKey = KEY, out: torch.Tensor | None = None) -> plan.Plan | None:
    """The plan that a first call gets."""
    a, b = torch.randn(key.m, key.k).half(), torch.randn(key.k, key.n).half()
    out = torch.zeros(key.m, key.n).half() if out is None else out
    return matmul._make(matmul._key(a, b, out, 0), a, b, out, 0)


def test_an_untuned_product_is_served_after_one_trial_and_remembered(registry, stand):
    out = torch.zeros(KEY.m, KEY.n).half()
    found = call(out=out)
    assert (found.eager, found.graph, stand.runs) == (True, True, 1)
    assert not out.any()  # the caller's result is not what the trial wrote
    kernel = stand.bound[0][0].source
    assert kernel.accepts(KEY.problem(), H200)
    assert registry.wanted() == [(KEY, 1)]
    assert registry.served_by_nearest() == {KEY: kernel.name}


def test_the_plan_is_kept_and_is_the_native_paths_too(registry, stand):
    a, b = torch.randn(KEY.m, KEY.k).half(), torch.randn(KEY.k, KEY.n).half()
    out = torch.zeros(KEY.m, KEY.n).half()
    found = [matmul._make_native(a, b, out, 0) for _ in range(3)]
    assert stand.runs == 1
    assert all(isinstance(one, NativePlan) and one.eager and one.graph for one in found)


def test_without_the_native_path_eager_calls_stay_torchs(registry, monkeypatch):
    monkeypatch.setattr(plan.native, "loaded", None)
    found = call()
    assert (found.eager, found.graph) == (False, True)


def test_by_default_a_miss_is_torchs_and_remembered(registry, stand):
    with settings.override(policy="fallback"):
        assert call() is None
    assert (stand.runs, registry.wanted(), registry.served_by_nearest()) == (0, [(KEY, 1)], {})


def test_a_wrong_result_withdraws_the_kernel_once_and_for_all(registry, stand):
    stand.factor = 1.01
    with pytest.warns(DispatchWarning, match=r"96x512x200.*withdrawn from every product") as caught:
        assert call() is None
    wrong = stand.bound[0][0].source.digest
    assert len(caught) == 1
    assert registry.quarantined() == {wrong}
    assert registry.served_by_nearest() == {}
    stand.factor = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(GemmKey.dense(104, 512, 200, gpu=H200))
    assert wrong not in [compiled.source.digest for compiled, _ in stand.bound[1:]]


def test_a_kernel_seen_to_be_wrong_serves_its_own_products_no_longer(registry, stand, monkeypatch):
    own = next(iter(registry.records())).key
    assert call(own).trial is None
    kernel = stand.bound[0][0].source
    monkeypatch.setattr(nearest, "_withdrawn", {kernel.digest})
    matmul.reset()
    assert call(own) is None


def test_nothing_is_tried_while_a_graph_is_captured(registry, stand, monkeypatch):
    monkeypatch.setattr(matmul, "_capturing", lambda: True)
    assert call() is None
    assert (stand.runs, stand.bound, matmul._table) == (0, [], {})
    monkeypatch.setattr(matmul, "_capturing", lambda: False)
    assert call() is not None


def test_a_trial_without_memory_says_nothing_of_the_kernel(registry, stand):
    stand.raises = torch.OutOfMemoryError("none left")
    assert call() is None
    assert (registry.quarantined(), registry.served_by_nearest()) == (frozenset(), {})
    assert registry.wanted() == [(KEY, 1)]


def test_kernels_of_other_tools_or_withdrawn_ones_are_not_tried(cache_dir, stand):
    registry = Registry(cache_dir)
    for record in tuned.records(torch_off=lambda _: 9.0):  # made by the tools of tests/samples.py
        registry.put(record)
    assert call() is None
    for record in tuned.records(torch_off=lambda _: 9.0, tools=tools()):
        registry.put(record)
        registry.quarantine(record.verified.compiled.source.digest)
    matmul.reset()
    assert call() is None
    assert stand.bound == []


def test_records_are_fitted_once(registry, monkeypatch):
    fitted = []
    fit = nearest.fit
    monkeypatch.setattr(nearest, "fit", lambda records: fitted.append(1) or fit(records))
    for n in (512, 520, 528):
        assert call(GemmKey.dense(96, n, 200, gpu=H200)) is not None
    assert len(fitted) == 1
