"""Records of real seeds, as tuning would store them, for tests of what is made from records."""

from samples import TOOLS, timing

from l2tune import compile, generate  # noqa: A004
from l2tune.spec.gpu import H200
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, CheckPassed, Compiled, LaunchData, Verified
from l2tune.spec.record import Record

MMA = {
    "TILE_M": 64, "TILE_N": 64, "TILE_K": 64, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 4, "GROUP": 8,
}  # fmt: skip
WGMMA = {
    "TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "STAGES": 4, "CONSUMERS": 2, "PINGPONG": 0,
    "GROUP": 8,
}  # fmt: skip
WGMMA_SPLIT = {
    "TILE_M": 64, "TILE_N": 64, "TILE_K": 64, "STAGES": 4, "SPLIT": 4, "ROWS": 1, "COLS": 1,
    "PUSH": 0,
    "FLIP": 0,
    "BULK": 1,
}  # fmt: skip
WGMMA_STREAMK = {
    "TILE_M": 64, "TILE_N": 32, "TILE_K": 64, "STAGES": 2, "SHARED": 0, "GROUP": 4,
}  # fmt: skip
WGMMA_HALF = {"TILE_M": 128, "TILE_N": 64, "TILE_K": 64, "STAGES": 3, "CLUSTER": 1, "GROUP": 8}
TRITON = {
    "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "SPLIT": 1, "PERSISTENT": 0,
    "VECTOR": 8, "EVEN_K": 0, "NUM_WARPS": 4, "NUM_STAGES": 4,
}  # fmt: skip


def seed_record(seed_id: str, values: dict[str, int], key: GemmKey) -> Record:
    """The record of one instance of a seed, admitted for `key`."""
    text = compile.flatten(instantiate(generate.seed_text(seed_id), values), generate.include_dir())
    source = KernelSource(text=text, arch=key.gpu.arch, dtype=key.dtype, layout=key.layout)
    assert source.serves(key)
    triton = source.backend == "triton"
    launches = tuple(
        LaunchData(
            kernel=launch.kernel,
            block=(128, 1, 1) if triton else None,
            smem_bytes=1024 if triton else None,
        )
        for launch in source.header.launch
    )
    compiled = Compiled(
        source=source, cubins=("0" * 64,), launches=launches, resources={},
        compiler=TOOLS.compiler,
    )  # fmt: skip
    checks = (CheckPassed(check="smoke", examples=2, seed=0, worst_ratio=0.25),)
    timed = timing(key, verified=Verified(key=key, compiled=compiled, checks=checks))
    return Record(
        key=key, outcome=Admitted(timing=timed, eager="torch", graph="kernel"),
        origin=source.header.origin, tools=TOOLS, created="2026-11-30T12:00:00+00:00",
    )  # fmt: skip


def naive() -> Record:
    """Ragged sizes, padded to no alignment."""
    return seed_record("sm80/naive", {}, GemmKey.dense(100, 99, 98, gpu=H200, batch=3, layout="tt"))


def split_k(split: int = 4) -> Record:
    """Two launches and a workspace."""
    key = GemmKey.dense(512, 64, 16384, gpu=H200, batch=2, layout="nt", dtype="bfloat16")
    return seed_record("sm80/mma_multistage", {**MMA, "SPLIT": split}, key)


def hopper(cluster: int = 2) -> Record:
    """Tensor maps and a cluster."""
    key = GemmKey.dense(512, 768, 512, gpu=H200, batch=4, layout="tn")
    return seed_record("sm90a/wgmma_persistent", {**WGMMA, "CLUSTER": cluster}, key)


def triton() -> Record:
    """A Triton kernel."""
    return seed_record("triton/matmul", TRITON, GemmKey.dense(512, 512, 512, gpu=H200))
