"""What GPU tests share: a worker process, the GPU's description, compiled seeds."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from l2tune import generate, pipeline, settings, stages
from l2tune.runtime.device import detect
from l2tune.runtime.worker import Worker
from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import instantiate
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled

DEFAULTS = {
    "sm80/naive": {},
    "sm80/tiled": {},
    "sm80/mma_multistage": {
        "TILE_M": 64, "TILE_N": 64, "TILE_K": 64, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 4,
        "SPLIT": 1, "GROUP": 8,
    },
    "sm80/mma_streamk": {
        "TILE_M": 64, "TILE_N": 64, "TILE_K": 64, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 4,
        "BLOCKS": 1, "GROUP": 8,
    },
    "sm80/skinny": {"TILE_M": 8, "TILE_N": 32, "TILE_K": 512, "SPLIT": 1},
    "sm90a/wgmma_persistent": {
        "TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "STAGES": 4, "CLUSTER": 2, "CONSUMERS": 2,
        "PINGPONG": 0, "GROUP": 8,
    },
    "sm90a/wgmma_half": {
        "TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "STAGES": 4, "CLUSTER": 2, "GROUP": 8,
    },
    "sm90a/wgmma_split": {
        "TILE_M": 64, "TILE_N": 64, "TILE_K": 64, "STAGES": 4, "SPLIT": 4, "ROWS": 1, "COLS": 1,
        "PUSH": 0,
        "FLIP": 0,
        "BULK": 1,
    },
    "sm90a/wgmma_streamk": {
        "TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "STAGES": 4, "SHARED": 0, "GROUP": 8,
    },
    "triton/matmul": {
        "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "SPLIT": 1, "PERSISTENT": 0,
        "VECTOR": 8, "EVEN_K": 0, "NUM_WARPS": 4, "NUM_STAGES": 4,
    },
}  # fmt: skip
"""One instance of each seed."""


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    found = detect()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("cache")
    root.chmod(0o700)
    with settings.override(cache_dir=root, native="off"):  # a test builds what it wants built
        yield root


@pytest.fixture(scope="session")
def bench(cache_root: Path) -> Iterator[pipeline.Bench]:
    with pipeline.Bench(Worker(), cache_root, budget_s=2.0) as opened:
        yield opened


@pytest.fixture(scope="session")
def compiled(bench: pipeline.Bench) -> Callable[..., Compiled]:
    """Compile a seed's default instance, or one with some tunables changed, for a key."""

    def make(seed_id: str, key: GemmKey, **changes: int) -> Compiled:
        text = instantiate(generate.seed_text(seed_id), DEFAULTS[seed_id] | changes)
        result = stages.build(stages.source_for(text, key), key, bench)
        assert isinstance(result, Compiled), result
        return result

    return make
