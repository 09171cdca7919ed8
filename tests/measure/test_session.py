import math
from pathlib import Path

import pytest
import torch

from l2tune import measure
from l2tune.errors import InfrastructureError
from l2tune.measure.ranking import Ranking
from l2tune.measure.run import Died
from l2tune.runtime.worker import WorkerDied
from l2tune.spec.gpu import H200
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Finding, Interval, LaunchData, Refuted, Timing, Verified

FILE = """/*---l2tune
id     = "test/{name}"
arch   = ["sm_90a"]
dtype  = ["f16"]
layout = ["nn"]
[[launch]]
kernel = "gemm"
grid   = ["1", "1", "1"]
args   = ["a", "b", "c"]
---*/
"""
KEY = GemmKey(m=64, n=64, k=64, gpu=H200)
ONE_US = Interval(us=1.0, lo=1.0, hi=1.0)


def verified(name: str) -> Verified:
    source = KernelSource(text=FILE.format(name=name), arch="sm_90a")
    compiled = Compiled(
        source=source, cubins=("0",), launches=(LaunchData(kernel="gemm"),), resources={},
        compiler="none",
    )  # fmt: skip
    return Verified(key=KEY, compiled=compiled, checks=())


def timing(of: Verified) -> Timing:
    return Timing(
        verified=of, gpu=ONE_US, host=ONE_US, host_path="python",
        baselines={"torch": ONE_US}, torch_host=ONE_US, floor_us=1.0, samples=15, run_id="0",
    )  # fmt: skip


class Scripted:
    """A worker that dies at kernels named `bad`, as a real one does, and answers for the rest."""

    def __init__(self, *, fails: Exception | None = None) -> None:
        self.calls, self.renewed, self._fails = 0, False, fails

    def renew(self) -> None:
        self.renewed = True

    def call(self, function, *arguments, timeout_s, progress=None):
        self.calls += 1
        if self._fails is not None:
            raise self._fails
        if function.__name__ == "measure_here":
            (request,) = arguments
            return self._measured(request.candidates)
        return self._ranked(arguments[1])

    def _measured(self, candidates):
        bad = [i for i, v in enumerate(candidates) if v.compiled.source.header.id == "test/bad"]
        if bad:
            return Died(f"candidate {bad[0]}", "CUDA_ERROR_ILLEGAL_ADDRESS", hung=False)
        return [timing(candidate) for candidate in candidates]

    def _ranked(self, candidates):
        times_us: list[float | None] = []
        for position, candidate in enumerate(candidates):
            if candidate.source.header.id == "test/bad":
                rest = [None] * (len(candidates) - position - 1)
                return Ranking([*times_us, math.inf, *rest], died=position)
            times_us.append(1.0)
        return Ranking(times_us, torch_us=2.0)


def measured(worker: Scripted, names: list[str]):
    return measure.measure(
        worker, KEY, [verified(name) for name in names], cache_dir=Path("cache"),
        through=torch.matmul, baselines="torch", triton=None, budget_s=1.0, seed=0,
    )  # fmt: skip


def test_a_candidate_that_faults_is_refuted_and_the_others_are_timed():
    worker = Scripted()
    outcomes = measured(worker, ["good", "bad", "fine", "bad"])
    assert [type(outcome) for outcome in outcomes] == [Timing, Refuted, Timing, Refuted]
    assert isinstance(outcomes[1], Refuted)
    assert outcomes[1].finding is Finding.FAULT
    assert isinstance(outcomes[2], Timing)
    assert outcomes[2].verified.compiled.source.header.id == "test/fine"
    assert worker.calls == 3


def test_a_dead_worker_is_never_scored():
    with pytest.raises(InfrastructureError, match="measuring gemm"):
        measured(Scripted(fails=WorkerDied("no answer in time", timed_out=True)), ["good"])


def test_a_failed_run_leaves_no_process_behind_that_could_be_broken():
    worker = Scripted(fails=InfrastructureError("context lost"))
    with pytest.raises(InfrastructureError, match="context lost"):
        measured(worker, ["good"])
    assert worker.renewed


def test_ranking_goes_on_behind_a_candidate_that_faults():
    candidates = [verified(name) for name in ("good", "bad", "fine")]
    rough = measure.quick_rank(Scripted(), KEY, candidates, cache_dir=Path("cache"), budget_s=10.0)
    assert rough == measure.Rough([1.0, math.inf, 1.0], torch_us=2.0)
