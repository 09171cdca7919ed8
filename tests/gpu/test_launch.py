"""Launching: streams, threads, shared-memory limits, clusters, graphs (cases a7, f2, f6)."""

import threading

import pytest
import torch

from l2tune import stages
from l2tune.dispatch import Pinned
from l2tune.runtime.device import detect
from l2tune.runtime.executable import Executable
from l2tune.runtime.reference import error_ratio
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Refuted

pytestmark = pytest.mark.gpu
both_paths = pytest.mark.usefixtures("path")

SMEM = """/*---l2tune
id     = "test/smem"
arch   = ["sm_90a"]
dtype  = ["f16"]
layout = ["nn"]
[[launch]]
kernel = "gemm"
grid   = [1, 1, 1]
block  = [32, 1, 1]
smem   = DYNAMIC
args   = ["a", "b", "c"]
---*/
#include <cuda_fp16.h>
extern "C" __global__ void gemm(const half* a, const half* b, half* c) {
  extern __shared__ unsigned char dynamic[];
  __shared__ volatile unsigned char fixed[STATIC + 1];
  if (STATIC) fixed[STATIC - 1] = 1;
  dynamic[DYNAMIC - 1] = 7;
  __syncthreads();
  if (threadIdx.x == 0)
    c[0] = __float2half(dynamic[DYNAMIC - 1] + (STATIC ? fixed[STATIC - 1] : 0));
}
"""


def _product(m: int, n: int, k: int, batch: int = 0):
    shape = (batch,) if batch else ()
    a = torch.randn(*shape, m, k, device="cuda").half()
    return a, torch.randn(*shape, k, n, device="cuda").half()


@pytest.mark.parametrize(
    ("static", "dynamic"), [(0, 49152), (16, 49152), (0, 49153), (1024, 231000 - 1024)]
)
def test_shared_memory_above_48_kb_is_asked_for(static, dynamic, bench, gpu):
    key = GemmKey.dense(1, 1, 1, gpu=gpu)
    text = SMEM.replace("STATIC", str(static)).replace("DYNAMIC", str(dynamic))
    built = stages.build(stages.source_for(text, key), key, bench)
    assert isinstance(built, Compiled), built
    bound = Executable(built, bench.artifacts).bind(key.problem(), gpu)
    a, b = _product(1, 1, 1)
    c = torch.zeros(1, 1, device="cuda", dtype=torch.float16)
    bound(a.data_ptr(), b.data_ptr(), c.data_ptr(), 0, torch.cuda.current_stream().cuda_stream)
    assert c.item() == 7 + (1 if static else 0)


def test_shared_memory_beyond_the_limit_is_refused_before_launch(bench, gpu):
    key = GemmKey.dense(1, 1, 1, gpu=gpu)
    text = SMEM.replace("STATIC", "16").replace("DYNAMIC", str(gpu.smem_limit_bytes))
    outcome = stages.build(stages.source_for(text, key), key, bench)
    assert isinstance(outcome, Refuted)
    assert str(gpu.smem_limit_bytes) in outcome.detail


@both_paths
def test_a_launch_runs_on_the_callers_stream(bench, gpu, compiled):
    a, b = _product(128, 128, 64)
    run = Pinned(
        compiled("sm80/mma_multistage", GemmKey.dense(128, 128, 64, gpu=gpu)), bench.cache_dir
    )
    run(a, b)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for _ in range(50):
        a.fill_(1)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            a.fill_(2)
            c = run(a, b)
        side.synchronize()
        assert error_ratio(torch.full_like(a, 2), b, c).item() <= 1


@both_paths
def test_a_launch_works_in_a_fresh_thread(bench, gpu, compiled):
    a, b = _product(256, 128, 64)
    run = Pinned(
        compiled("sm90a/wgmma_persistent", GemmKey.dense(256, 128, 64, gpu=gpu)), bench.cache_dir
    )
    results = []
    thread = threading.Thread(target=lambda: results.append(run(a, b)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert error_ratio(a, b, results[0]).item() <= 1


@both_paths
def test_a_launch_works_in_autograds_thread(bench, gpu, compiled):
    a, b = _product(256, 128, 64)
    run = Pinned(
        compiled("sm80/mma_multistage", GemmKey.dense(256, 128, 64, gpu=gpu)), bench.cache_dir
    )
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            with torch.no_grad():
                seen.append(run(a, b))
            return grad * 2

    x = torch.ones(4, device="cuda", requires_grad=True)
    Twice.apply(x).sum().backward()
    torch.cuda.synchronize()
    assert error_ratio(a, b, seen[0]).item() <= 1


@both_paths
@pytest.mark.parametrize("shape", [(2944, 2944, 128), (128, 2944, 64), (100, 40, 64)])
def test_a_cluster_serves_an_odd_number_of_tiles(shape, bench, gpu, compiled):
    key = GemmKey.dense(*shape, gpu=gpu)
    run = Pinned(compiled("sm90a/wgmma_persistent", key, CLUSTER=2), bench.cache_dir)
    a, b = _product(*shape)
    assert error_ratio(a, b, run(a, b)).item() <= 1


@both_paths
@pytest.mark.parametrize("seed", ["sm80/mma_multistage", "sm90a/wgmma_persistent", "triton/matmul"])
def test_a_captured_launch_replays_with_new_contents(seed, bench, gpu, compiled):
    key = GemmKey.dense(128, 128, 512, gpu=gpu)
    changes = {"SPLIT": 4} if seed != "sm90a/wgmma_persistent" else {}
    run = Pinned(compiled(seed, key, **changes), bench.cache_dir)
    a, b = _product(128, 128, 512)
    run(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = run(a, b)
    for _ in range(100):
        a.normal_()
        b.normal_()
        graph.replay()
        assert error_ratio(a, b, c).item() <= 1


def test_the_gpu_is_known():
    found = detect()
    assert found is not None
    assert found.sms > 0
