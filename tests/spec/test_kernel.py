"""Instances of a tunable file are whole files, and a kernel's digest follows what is compiled."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import CONTRACT, LAUNCH, cuda_file, keys

from l2tune.errors import HeaderError
from l2tune.spec import header
from l2tune.spec.gpu import A100, H200
from l2tune.spec.kernel import KernelSource, instances, instantiate
from l2tune.spec.key import GemmKey

names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in header.PROBLEM_NAMES and not name.startswith("L2_") and name != "where"
)
tunables = st.dictionaries(
    names, st.lists(st.integers(0, 999), min_size=1, max_size=4, unique=True), max_size=4
)
SEEDS = sorted(Path(__file__, "../../../kernels_seed").resolve().glob("*/*.cu"))


def tunable_file(choices: dict[str, list[int]], before: str = "") -> str:
    table = "".join(f"{name} = {values}\n" for name, values in choices.items())
    return cuda_file(CONTRACT + before + "[tune]\n" + table, LAUNCH)


@given(tunables, st.data())
def test_an_instance_is_a_file_whose_tunables_are_settled(choices, data):
    picks = {name: data.draw(st.sampled_from(values)) for name, values in choices.items()}
    text = instantiate(tunable_file(choices), picks)
    source = KernelSource(text=text, arch="sm_80")
    assert source.tunables == picks
    assert instantiate(text, picks) == text
    assert text.split("---*/")[1] == tunable_file(choices).split("---*/")[1]


def test_a_tunable_that_shares_its_name_with_a_key_is_settled_or_refused():
    text = tunable_file({"swizzle": [1, 2]}, "[tma.a]\nbox = [64, 64]\nswizzle = 128\n")
    with pytest.raises(HeaderError):
        instantiate(text, {"swizzle": 2})


def test_a_tunable_that_stands_where_it_cannot_be_replaced_is_refused():
    with pytest.raises(HeaderError, match="start of a line"):
        instantiate(cuda_file(CONTRACT + "tune = { T = [1, 2] }\n"), {"T": 2})


@pytest.mark.parametrize("values", [{"TILE": 3}, {"OTHER": 1}])
def test_only_allowed_values_of_known_tunables_make_an_instance(values):
    with pytest.raises(HeaderError, match="is not allowed"):
        instantiate(tunable_file({"TILE": [1, 2]}), values)


def test_a_file_with_open_tunables_is_no_kernel():
    with pytest.raises(HeaderError, match="not settled"):
        KernelSource(text=tunable_file({"TILE": [1, 2]}), arch="sm_80")


def test_instances_obey_every_constraint_of_the_table():
    text = cuda_file(
        CONTRACT
        + '[tune]\nX = [1, 2, 3]\nY = [1, 2, 3]\nwhere = ["X < Y", "Y * 60000 < smem_limit"]\n',
        LAUNCH,
    )
    assert list(instances(text, A100)) == [{"X": 1, "Y": 2}]
    assert len(list(instances(text, H200))) == 3


def test_the_digest_changes_with_all_that_changes_the_machine_code():
    file = tunable_file({"T": [1, 2]})
    made = [
        KernelSource(text=instantiate(file, {"T": t}), arch=arch, dtype=dtype, layout=layout)
        for t in (1, 2)
        for arch in ("sm_80", "sm_90a")
        for dtype in ("float16", "bfloat16")
        for layout in ("nn", "nt", "tn", "tt")
    ]
    assert len({source.digest for source in made}) == len(made)


@given(keys())
def test_a_kernel_serves_only_the_target_and_pick_it_was_compiled_for(key):
    for arch in ("sm_80", "sm_90a"):
        for layout in ("nn", "tt"):
            source = KernelSource(text=cuda_file(), arch=arch, dtype=key.dtype, layout=layout)
            assert source.serves(key) == (arch == key.gpu.arch and layout == key.layout)


def test_requires_decides_whether_a_problem_is_offered():
    source = KernelSource(
        text=cuda_file(CONTRACT + 'requires = ["k % 8 == 0", "align >= 16"]\n'), arch="sm_90a"
    )
    assert source.serves(GemmKey.dense(64, 64, 64, gpu=H200))
    assert not source.serves(GemmKey.dense(64, 64, 60, gpu=H200))
    assert not source.serves(GemmKey.dense(64, 65, 64, gpu=H200))


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_the_id_of_a_seed_is_its_path(path):
    assert header.parse(path.read_text())[1].id == f"{path.parent.name}/{path.stem}"
