"""Seeds as compiled, run from their contracts, give the exact product."""

import re

import numpy as np
import pytest
from emulated_seeds import compiled, is_right, run
from samples import CONTRACT, cuda_file
from seeds import MMA, TRITON, WGMMA, WGMMA_HALF, WGMMA_SPLIT, WGMMA_STREAMK

from l2tune import compile, generate  # noqa: A004
from l2tune.runtime.emulator.findings import EmulationStopped, Fault
from l2tune.runtime.emulator.launch import emulate
from l2tune.spec.gpu import H200
from l2tune.spec.kernel import KernelSource
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import aligned_problem
from l2tune.store import Artifacts

LAYOUTS = ["nn", "nt", "tn", "tt"]
SMALL = {**MMA, "TILE_M": 32, "TILE_N": 32, "TILE_K": 32, "STAGES": 3, "SPLIT": 1}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    return folder


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", ["sm80/naive", "sm80/tiled"])
def test_simple_kernels_are_right_for_ragged_sizes(seed, layout, dtype, cache):
    built = compiled(seed, {}, cache, layout=layout, dtype=dtype)
    assert is_right(run(built, m=17, n=33, k=21, batch=2, sms=3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mma_with_a_ring_of_copies_is_right(layout, cache):
    built = compiled("sm80/mma_multistage", SMALL, cache, layout=layout)
    assert is_right(run(built, m=40, n=72, k=136, align=16, batch=2, sms=2))
    assert is_right(run(built, m=33, n=9, k=8, align=16))


def test_mma_for_sm_80_is_right(cache):
    built = compiled("sm80/mma_multistage", SMALL, cache, arch="sm_80", dtype="bfloat16")
    assert is_right(run(built, m=64, n=32, k=64, align=16))


def test_a_split_sum_goes_through_the_workspace_of_two_launches(cache):
    built = compiled("sm80/mma_multistage", {**SMALL, "SPLIT": 2}, cache)
    result = run(built, m=40, n=40, k=256, align=16, sms=4)
    assert is_right(result)
    assert len(result.emulated.statistics) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "values", [{"CLUSTER": 1}, {"CLUSTER": 2}, {"CLUSTER": 1, "PINGPONG": 1, "TILE_M": 64}]
)
def test_wgmma_fed_by_tma_is_right(values, layout, cache):
    picks = {**WGMMA, "TILE_N": 64, **values}
    built = compiled("sm90a/wgmma_persistent", picks, cache, layout=layout)
    assert is_right(run(built, m=136, n=72, k=136, align=16, batch=2, sms=2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_wgmma_tiles_that_three_warpgroups_share_are_right(layout, cache):
    tile = {"TILE_M": 192, "TILE_N": 256, "STAGES": 3, "CONSUMERS": 3, "CLUSTER": 2}
    built = compiled("sm90a/wgmma_persistent", {**WGMMA, **tile}, cache, layout=layout)
    assert is_right(run(built, m=200, n=264, k=264, align=16, sms=2))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_wgmma_is_right_whatever_the_order_of_the_warps(order, cache):
    built = compiled("sm90a/wgmma_persistent", {**WGMMA, "CLUSTER": 2}, cache)
    assert is_right(run(built, m=256, n=128, k=320, align=16, sms=2, warp_order=order))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "values",
    [
        {"SPLIT": 4}, {"SPLIT": 3}, {"ROWS": 2, "COLS": 2}, {"SPLIT": 2, "ROWS": 2}, {"TILE_N": 16},
        {"SPLIT": 3, "PUSH": 1}, {"TILE_N": 16, "COLS": 2, "FLIP": 1},
        {"TILE_N": 32, "SPLIT": 3, "PUSH": 1, "FLIP": 1}, {"TILE_N": 8, "SPLIT": 4, "PUSH": 1},
        {"TILE_N": 16, "SPLIT": 4, "FLIP": 1}, {"TILE_N": 64, "BULK": 0},
    ],
)  # fmt: skip
def test_clusters_that_share_out_k_and_operands_are_right(values, layout, cache):
    picks = {**WGMMA_SPLIT, "SPLIT": 1, "STAGES": 2, **values}
    built = compiled("sm90a/wgmma_split", picks, cache, layout=layout)
    assert is_right(run(built, m=136, n=72, k=264, align=16, batch=2, sms=2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_in_float16_are_right_in_clusters_and_past_edges(layout, cache):
    values = {**WGMMA_HALF, "STAGES": 2, "CLUSTER": 2, "GROUP": 1}
    built = compiled("sm90a/wgmma_half", values, cache, layout=layout)
    for n in (72, 71):  # stored by copies, and from registers
        assert is_right(run(built, m=264, n=n, k=136, align=16, sms=2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_divided_among_blocks_are_joined_again(layout, cache):
    picks = {**SMALL, "BLOCKS": 1}
    del picks["SPLIT"]
    built = compiled("sm80/mma_streamk", picks, cache, layout=layout)
    for sms in (5, 40):  # shares of a tile and more, and of parts of one
        assert is_right(run(built, m=40, n=72, k=136, align=16, batch=2, sms=sms))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("values", "sms"), [({}, 5), ({"SHARED": 1}, 4), ({"SHARED": 2, "TILE_M": 128}, 3)]
)
def test_wgmma_tiles_that_blocks_share_are_joined_again(values, sms, layout, cache):
    built = compiled("sm90a/wgmma_streamk", {**WGMMA_STREAMK, **values}, cache, layout=layout)
    assert is_right(run(built, m=136, n=40, k=264, align=16, batch=2, sms=sms))


@pytest.mark.parametrize("patience", [0, 100_000])
def test_a_tile_of_many_parts_is_right_whoever_finishes_it(patience, cache, monkeypatch):
    text = generate.seed_text("sm90a/wgmma_streamk")
    changed = re.sub(r"(?<=kPatience = )\d+", str(patience), text)
    monkeypatch.setattr(generate, "seed_text", lambda _: changed)
    built = compiled("sm90a/wgmma_streamk", WGMMA_STREAMK, cache, dtype="bfloat16")
    for order in (None, 1):
        result = run(built, m=72, n=40, k=576, align=16, sms=20, warp_order=order)
        assert is_right(result)
        gave_up = result.emulated.statistics[1].mix.get("atom.acq_rel.gpu.global.or.b32", 0)
        assert bool(gave_up) == (patience == 0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tile_m", "tile_n", "split", "m", "n", "dtype"),
    [(4, 32, 2, 3, 53, "float16"), (64, 1, 1, 72, 1, "bfloat16")],
)
def test_few_rows_or_columns_are_right(tile_m, tile_n, split, m, n, dtype, layout, cache):
    tile_k = 8192 // max(tile_m, tile_n)
    picks = {"TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": tile_k, "SPLIT": split}
    built = compiled("sm80/skinny", picks, cache, layout=layout, dtype=dtype)
    assert is_right(run(built, m=m, n=n, k=tile_k + 21, align=2, sms=3))
    assert is_right(run(built, m=m, n=n, k=split * tile_k + 24, align=16, batch=2, sms=3))


def test_a_triton_kernel_is_right(cache):
    picks = {**TRITON, "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}
    built = compiled("triton/matmul", picks, cache)
    assert is_right(run(built, m=40, n=48, k=64, align=16))


BODY = """#include <cuda_fp16.h>
extern "C" __global__ void gemm(half* c, int m) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  {}
}}
"""


def write(body, cache, *, m, n):
    """Run a kernel that only writes to the output, on a row of `n` elements padded to 16 bytes."""
    text = cuda_file(CONTRACT, body=BODY.format(body))
    artifacts = Artifacts(cache)
    built = compile.compile_kernel(KernelSource(text=text, arch="sm_90a"), artifacts)
    assert isinstance(built, Compiled), built
    problem = aligned_problem(m=m, n=n, k=1, batch=1, layout="nn", align=16)
    c = np.zeros((m - 1) * problem.ldc + n, np.uint16)
    operands = {"a": np.zeros(m * 8, np.uint16), "b": np.zeros(n, np.uint16), "c": c}
    ptx = {0: artifacts.get(built.ptx[0]).decode()}
    return emulate(built, ptx, problem, H200, operands)


def test_elements_that_no_thread_writes_are_reported(cache):
    found = write("if (i < 3) c[i] = __float2half(1);", cache, m=1, n=5)
    assert found.unwritten.tolist() == [[0, 0, 3], [0, 0, 4]]
    assert found.stray_bytes == 0


def test_padding_that_is_written_is_counted(cache):
    found = write("if (i < 13) c[i] = __float2half(1);", cache, m=2, n=5)
    assert not len(found.unwritten)
    assert found.stray_bytes == 6


def test_a_write_past_the_last_element_is_out_of_bounds(cache):
    with pytest.raises(EmulationStopped) as stopped:
        write("if (i < 14) c[i] = __float2half(1);", cache, m=2, n=5)
    assert stopped.value.finding.fault is Fault.OUT_OF_BOUNDS
    assert stopped.value.finding.thread == 13
