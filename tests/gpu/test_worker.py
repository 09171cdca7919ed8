"""One bad candidate costs its worker, never the caller or the next candidate (cases d1, d2)."""

import time

import pytest
import torch

from l2tune import stages, verify
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Finding, Refuted, Verified

pytestmark = pytest.mark.gpu

HEAD = """/*---l2tune
id     = "test/bad"
arch   = ["sm_90a"]
dtype  = ["f16"]
layout = ["nn"]
workspace = "WORKSPACE"
[[launch]]
kernel = "gemm"
grid   = [1, 1, 1]
block  = [32, 1, 1]
args   = ["a", "b", "c"]
---*/
#include <cuda_fp16.h>
extern "C" __global__ void gemm(const half* a, const half* b, half* c) { BODY }
"""
FAULT = "*(volatile int*)8 = 1;"
HANG = "while (*(volatile const short*)a != 0x1234) {}"


def _verdict(body: str, bench, gpu, workspace: str = "0"):
    key = GemmKey.dense(64, 64, 64, gpu=gpu)
    text = HEAD.replace("BODY", body).replace("WORKSPACE", workspace)
    built = stages.build(stages.source_for(text, key), key, bench)
    assert isinstance(built, Compiled), built
    return verify.verify(bench.worker, built, key, cache_dir=bench.cache_dir, seed=0)


@pytest.mark.parametrize(
    ("body", "finding"),
    [(FAULT, Finding.FAULT), (HANG, Finding.HANG), ("__trap();", Finding.FAULT)],
)
def test_a_kernel_that_dies_is_reported_and_the_next_one_runs(body, finding, bench, gpu, compiled):
    outcome = _verdict(body, bench, gpu)
    assert isinstance(outcome, Refuted)
    assert outcome.finding is finding
    key = GemmKey.dense(64, 64, 64, gpu=gpu)
    good = compiled("sm80/naive", key)
    started = time.monotonic()
    proof = verify.verify(
        bench.worker, good, key, cache_dir=bench.cache_dir, seed=0, checks=("smoke",)
    )
    assert isinstance(proof, Verified), proof
    assert time.monotonic() - started < 60
    assert torch.ones(8, device="cuda").sum().item() == 8


def test_a_workspace_beyond_the_gpu_is_the_kernels_fault(bench, gpu):
    outcome = _verdict("", bench, gpu, workspace="1000 * 1000 * 1000 * 1000")
    assert isinstance(outcome, Refuted)
    assert outcome.finding is Finding.OUT_OF_MEMORY


def test_ten_dying_kernels_leave_no_process_behind(bench, gpu):
    import psutil

    for turn in range(10):
        outcome = _verdict(f"{FAULT} c[{turn}] = a[0];", bench, gpu)
        assert isinstance(outcome, Refuted)
    workers = [
        child
        for child in psutil.Process().children(recursive=True)
        if "l2tune.runtime.worker" in " ".join(child.cmdline())
    ]
    assert len(workers) <= 3  # the current one and its spares
