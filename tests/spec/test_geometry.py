"""A contract's launches and tensor maps, as numbers."""

import pytest
import samples
import seeds

from l2tune.spec import geometry
from l2tune.spec.gpu import H200
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey


def _compiled(record):
    return record.outcome.timing.verified.compiled


def test_a_launch_that_a_split_of_1_does_not_need_is_left_out() -> None:
    for split, entries in ((1, ["gemm"]), (4, ["gemm", "reduce"])):
        record = seeds.split_k(split)
        found = geometry.launches(_compiled(record), record.key.problem(), H200)
        assert [launch.kernel for launch in found] == entries


def test_a_persistent_grid_is_as_large_as_the_gpu_and_a_multiple_of_its_cluster() -> None:
    record = seeds.seed_record(
        "sm90a/wgmma_persistent",
        {**seeds.WGMMA, "CLUSTER": 2},
        GemmKey.dense(8192, 8192, 8192, gpu=H200),
    )
    (launch,) = geometry.launches(_compiled(record), record.key.problem(), H200)
    assert (launch.grid, launch.block, launch.cluster) == ((132, 1, 1), (384, 1, 1), (2, 1, 1))
    assert launch.smem_bytes <= H200.smem_limit_bytes


def test_triton_s_compiler_decides_threads_and_shared_memory() -> None:
    record = seeds.triton()
    compiled = _compiled(record)
    launch = geometry.launches(compiled, record.key.problem(), H200)[0]
    assert launch.block == compiled.launches[0].block
    assert launch.smem_bytes == compiled.launches[0].smem_bytes
    assert launch.extra_pointers == compiled.launches[0].extra_pointers


@pytest.mark.parametrize("grid", ['["0 - 1", 1, 1]', "[2, 65536, 1]", "[3, 1, 1]"])
def test_an_impossible_grid_is_refused_with_its_numbers(grid: str) -> None:
    cluster = "cluster = [2, 1, 1]\n"
    launch = (
        samples.LAUNCH.replace('["min(cdiv(m * n * batch, 256), 2147483647)", 1, 1]', grid)
        + cluster
    )
    text = samples.cuda_file(samples.CONTRACT, launch)
    key = GemmKey.dense(512, 512, 512, gpu=H200)
    source = KernelSource(text=text, arch="sm_90a")
    compiled = samples.verified(key).compiled.model_copy(update={"source": source})
    with pytest.raises(ValueError, match="is impossible with cluster"):
        geometry.launches(compiled, key.problem(), H200)


@pytest.mark.parametrize(
    ("layout", "a", "b"),
    [
        ("nn", (136, 200), (320, 136)),
        ("nt", (136, 200), (136, 320)),
        ("tn", (200, 136), (320, 136)),
        ("tt", (200, 136), (136, 320)),
    ],
)
@pytest.mark.parametrize("shared", ["", "a", "ab"])
def test_a_tensor_map_describes_the_operand_as_it_is_stored(layout, a, b, shared) -> None:
    key = GemmKey.dense(200, 320, 136, gpu=H200, batch=4, layout=layout)
    key = key.model_copy(update={"shared": shared})
    record = seeds.seed_record("sm90a/wgmma_persistent", {**seeds.WGMMA, "CLUSTER": 2}, key)
    maps = geometry.tensor_maps(_compiled(record), key.problem(), H200)
    for name, stored in (("a", a), ("b", b), ("c", (320, 200))):
        matrices = 1 if name in shared else 4
        assert maps[name].sizes == (*stored, matrices)
        assert maps[name].strides_bytes == (2 * stored[0], 2 * stored[0] * stored[1])
        assert maps[name].box[2] == 1


def test_a_split_kernel_s_workspace_is_as_large_as_its_partial_sums() -> None:
    record = seeds.split_k()
    compiled, problem = _compiled(record), record.key.problem()
    assert geometry.workspace_bytes(compiled, problem, H200) == 4 * 2 * 512 * 64 * 4


@pytest.mark.parametrize("pdl", ["true", "false", '"SPLIT > 1"', '"SPLIT > 2"'])
@pytest.mark.parametrize("zeroed", ["true", "false"])
def test_it_may_overlap_if_its_first_launch_says_so_and_nothing_is_cleared(
    pdl: str, zeroed: str
) -> None:
    key = GemmKey.dense(512, 512, 512, gpu=H200)
    contract = samples.CONTRACT + f"workspace = 256\nworkspace_zeroed = {zeroed}\n"
    text = samples.cuda_file(contract, f"[tune]\nSPLIT = 2\n{samples.LAUNCH}pdl = {pdl}\n")
    compiled = samples.verified(key).compiled
    source = KernelSource(text=text, arch="sm_90a")
    found = geometry.overlaps_predecessor(
        compiled.model_copy(update={"source": source}), key.problem(), H200
    )
    assert found == (pdl in ("true", '"SPLIT > 1"') and zeroed == "false")
