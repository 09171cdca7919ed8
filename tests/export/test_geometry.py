"""The numbers written into an export are those that the runtime launches with."""

import pytest
import samples
import seeds

from l2tune.export import geometry
from l2tune.runtime.executable import _geometry, _TensorMaps
from l2tune.spec.gpu import H200
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey

RECORDS = {"naive": seeds.naive, "split 1": lambda: seeds.split_k(1), "split 4": seeds.split_k,
           "hopper": seeds.hopper, "triton": seeds.triton}  # fmt: skip


@pytest.mark.parametrize("make", RECORDS.values(), ids=RECORDS)
def test_launches_are_those_of_the_runtime(make) -> None:
    record = make()
    compiled, key = record.outcome.timing.verified.compiled, record.key
    names = compiled.source.names(key.problem(), key.gpu)
    header = compiled.source.header
    pairs = zip(header.launch, compiled.launches, strict=True)
    expected = [_geometry(launch, data, names) for launch, data in pairs if launch.grid[0](names)]
    found = geometry.launches(compiled, key)
    fields = ("grid", "block", "cluster", "smem_bytes", "pdl")
    assert [{name: getattr(one, name) for name in fields} for one in found] == expected


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("batch", "shared"), [(1, ""), (4, ""), (4, "a"), (4, "ab")])
def test_tensor_maps_are_those_of_the_runtime(layout: str, batch: int, shared: str) -> None:
    record = seeds.hopper()
    key = GemmKey.dense(200, 320, 136, gpu=record.key.gpu, batch=batch, layout=layout)
    key = key.model_copy(update={"shared": shared})
    record = seeds.seed_record("sm90a/wgmma_persistent", {**seeds.WGMMA, "CLUSTER": 2}, key)
    compiled, problem = record.outcome.timing.verified.compiled, key.problem()
    source = compiled.source
    names = source.names(problem, key.gpu)
    for found in geometry.tensor_maps(compiled, key):
        table = source.header.tma[found.name]
        expected = _TensorMaps(found.operand, table, source.dtype, problem, names)._arguments
        assert {name: getattr(found, name, source.dtype) for name in expected} == expected


def test_operands_start_where_the_key_s_alignment_class_says() -> None:
    key = GemmKey.dense(512, 512, 512, gpu=H200)
    assert geometry.offset_elements(key.problem()) == 0
    unaligned = key.model_copy(update={"align": 4})
    assert geometry.offset_elements(unaligned.problem()) == 2


def test_a_split_kernel_s_workspace_is_as_large_as_its_partial_sums() -> None:
    record = seeds.split_k()
    compiled = record.outcome.timing.verified.compiled
    assert geometry.workspace_bytes(compiled, record.key) == 4 * 2 * 512 * 64 * 4


@pytest.mark.parametrize("pdl", ["true", "false"])
@pytest.mark.parametrize("zeroed", ["true", "false"])
def test_it_may_overlap_if_its_first_launch_says_so_and_nothing_is_cleared(
    pdl: str, zeroed: str
) -> None:
    key = GemmKey.dense(512, 512, 512, gpu=H200)
    contract = samples.CONTRACT + f"workspace = 256\nworkspace_zeroed = {zeroed}\n"
    text = samples.cuda_file(contract, samples.LAUNCH + f"pdl = {pdl}\n")
    compiled = samples.verified(key).compiled
    source = KernelSource(text=text, arch="sm_90a")
    found = geometry.overlaps_predecessor(compiled.model_copy(update={"source": source}), key)
    assert found == (pdl == "true" and zeroed == "false")
