"""The gate on a real GPU: seeds pass, each exploit is refuted for its fault, its twin passes."""

import exploit_files
import pytest

from l2tune import pipeline, settings, stages, verify
from l2tune.spec.key import Acc, GemmKey
from l2tune.spec.outcome import Compiled, CompileFailed, Refuted, Verified
from tests.gpu.conftest import DEFAULTS

pytestmark = pytest.mark.gpu


def _gate(name: str, bench: pipeline.Bench, gpu) -> Verified | Refuted | CompileFailed:
    key = exploit_files.key_of(name, gpu)
    built = stages.build(exploit_files.source_of(name, key), key, bench)
    if not isinstance(built, Compiled):
        return built
    with settings.override(max_examples=15):
        return verify.verify(bench.worker, built, key, cache_dir=bench.cache_dir, seed=1)


@pytest.mark.parametrize("name", exploit_files.SEEN_BY_A_GPU)
def test_the_gate_names_the_fault_of(name, bench, gpu):
    outcome = _gate(name, bench, gpu)
    assert isinstance(outcome, Refuted), outcome
    found = (outcome.stage, outcome.check, outcome.finding.value)
    expect = exploit_files.expected(name)
    assert found == (expect.stage, expect.check, expect.finding), outcome


@pytest.mark.parametrize("name", exploit_files.MENDED + exploit_files.HONEST)
def test_the_gate_admits(name, bench, gpu):
    outcome = _gate(name, bench, gpu)
    assert isinstance(outcome, Verified), outcome


SEED_CASES = [
    (seed, layout, dtype)
    for seed in DEFAULTS
    for layout in ("nn", "nt", "tn", "tt")
    for dtype in ("float16", "bfloat16")
    if (seed, dtype) != ("sm90a/wgmma_half", "bfloat16")  # has no such sums
]


def _acc(seed: str) -> Acc:
    return "float16" if seed == "sm90a/wgmma_half" else "float32"


@pytest.mark.parametrize(("seed", "layout", "dtype"), SEED_CASES)
def test_a_seed_passes_the_whole_gate(seed, layout, dtype, bench, gpu, compiled):
    rows = 8 if seed == "sm80/skinny" else 320
    key = GemmKey.dense(
        rows, 264, 200, gpu=gpu, batch=2, layout=layout, dtype=dtype, acc=_acc(seed)
    )
    built = compiled(seed, key)
    with settings.override(max_examples=25):
        outcome = verify.verify(bench.worker, built, key, cache_dir=bench.cache_dir, seed=3)
    assert isinstance(outcome, Verified), outcome
    assert outcome.examples > 100


WGMMA = [
    {"TILE_M": 128, "TILE_N": 256, "STAGES": 4, "CLUSTER": 2, "PINGPONG": 0},
    {"TILE_M": 256, "TILE_N": 128, "STAGES": 4, "CLUSTER": 1, "PINGPONG": 0},
    {"TILE_M": 64, "TILE_N": 256, "STAGES": 4, "CLUSTER": 1, "PINGPONG": 1},
    {"TILE_M": 64, "TILE_N": 16, "STAGES": 8, "CLUSTER": 2, "PINGPONG": 1},
    {"TILE_M": 64, "TILE_N": 8, "STAGES": 8, "CLUSTER": 1, "PINGPONG": 1},
    {"TILE_M": 192, "TILE_N": 128, "STAGES": 4, "CLUSTER": 1, "CONSUMERS": 3},
    {"TILE_M": 192, "TILE_N": 256, "STAGES": 3, "CLUSTER": 2, "CONSUMERS": 3},
]
WGMMA_HALF = [
    {"TILE_M": 256, "TILE_N": 256, "STAGES": 3},
    {"TILE_M": 256, "TILE_N": 64, "CLUSTER": 1},
]
WGMMA_SPLIT = [
    {"TILE_M": 128, "TILE_N": 128, "STAGES": 3, "SPLIT": 8},
    {"TILE_N": 128, "SPLIT": 1, "ROWS": 2},
    {"TILE_N": 256, "SPLIT": 1, "COLS": 2},
    {"TILE_N": 96, "SPLIT": 2, "ROWS": 2, "COLS": 2},
    {"TILE_N": 8, "STAGES": 12, "SPLIT": 1},
    {"TILE_M": 128, "TILE_N": 128, "SPLIT": 6},
    {"TILE_N": 256, "SPLIT": 3, "PUSH": 1},
    {"TILE_N": 16, "SPLIT": 1, "FLIP": 1},
    {"TILE_N": 32, "SPLIT": 4, "PUSH": 1, "FLIP": 1},
    {"TILE_N": 8, "SPLIT": 8, "PUSH": 1, "FLIP": 1},
    {"TILE_N": 128, "SPLIT": 1, "BULK": 0},
]
WGMMA_STREAMK = [
    {"SHARED": 1},
    {"TILE_N": 256, "SHARED": 2},
    {"TILE_M": 256, "STAGES": 3},
    {"TILE_M": 64, "TILE_N": 96, "STAGES": 6},
    {"TILE_M": 64, "TILE_N": 32, "SHARED": 1, "GROUP": 1},
]
MMA = [{"SPLIT": 4}, {"SPLIT": 32, "TILE_K": 32}, {"TILE_M": 128, "TILE_N": 128, "STAGES": 3}]
STREAMK = [
    {"TILE_N": 128, "TILE_K": 32, "BLOCKS": 2},
    {"TILE_M": 128, "TILE_N": 128, "WARPS_N": 4, "STAGES": 3, "GROUP": 4},
]
SKINNY = [
    {"TILE_M": 1, "TILE_K": 1024, "SPLIT": 4},
    {"TILE_M": 2, "TILE_N": 256, "TILE_K": 64},
    {"TILE_M": 64, "TILE_N": 8, "TILE_K": 256, "SPLIT": 8},
    {"TILE_M": 128, "TILE_N": 1, "TILE_K": 128},
]
TRITON = [
    {"SPLIT": 8, "BLOCK_M": 64, "BLOCK_N": 16},
    {"PERSISTENT": 1},
    {"VECTOR": 1, "SPLIT": 4},
]
INSTANCES = (
    [("sm90a/wgmma_persistent", changes) for changes in WGMMA]
    + [("sm90a/wgmma_half", changes) for changes in WGMMA_HALF]
    + [("sm90a/wgmma_split", changes) for changes in WGMMA_SPLIT]
    + [("sm90a/wgmma_streamk", changes) for changes in WGMMA_STREAMK]
    + [("sm80/mma_multistage", changes) for changes in MMA]
    + [("sm80/mma_streamk", changes) for changes in STREAMK]
    + [("sm80/skinny", changes) for changes in SKINNY]
    + [("triton/matmul", changes) for changes in TRITON]
)


def _within(skinny: dict[str, int]) -> tuple[int, int]:
    """Few rows or few columns, as many as the tile has."""
    sizes = ((skinny["TILE_M"], 384), (skinny["TILE_N"], 520))
    m, n = (tile if tile <= 8 else size for tile, size in sizes)
    return m, n


@pytest.mark.parametrize(("seed", "changes"), INSTANCES)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_an_instance_passes_the_whole_gate(seed, changes, layout, bench, gpu, compiled):
    m, n = (384, 520) if seed != "sm80/skinny" else _within(DEFAULTS[seed] | changes)
    key = GemmKey.dense(m, n, 2056, gpu=gpu, layout=layout, acc=_acc(seed))
    built = compiled(seed, key, **changes)
    with settings.override(max_examples=25):
        outcome = verify.verify(bench.worker, built, key, cache_dir=bench.cache_dir, seed=4)
    assert isinstance(outcome, Verified), outcome
