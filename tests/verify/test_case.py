"""Cases that the gate draws lie inside the contract, and state the problem that is built."""

import dataclasses
import functools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from l2tune import generate
from l2tune.spec.gpu import A100, H200
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.spec.key import GemmKey
from l2tune.verify.admitted import repair, tile_sizes
from l2tune.verify.case import Case, case_of
from l2tune.verify.strategies import cases
from l2tune.verify.values import CLASSES

CONTRACT = """/*---l2tune
id       = "test/case"
arch     = ["sm_90a"]
dtype    = ["f16"]
layout   = ["nn", "nt", "tn", "tt"]
requires = [REQUIRES]
[[launch]]
kernel = "gemm"
grid   = [1, 1, 1]
args   = ["c"]
---*/
"""
REQUIRES = {
    "anything": "",
    "aligned": '"align >= 16"',
    "multiples": '"m % 64 == 0", "n % 8 == 0", "k % 32 == 0"',
    "dense": '"contiguous == 1"',
    "single": '"batch == 1", "n % 16 == 0"',
    "shared b": '"batch == 1 or not b_batched"',
}
layouts = st.sampled_from(["nn", "nt", "tn", "tt"])
small = st.integers(1, 70)


def contract(requires: str, layout: str = "nn") -> KernelSource:
    text = CONTRACT.replace("REQUIRES", requires)
    return KernelSource(text=text, arch="sm_90a", layout=layout)


@functools.cache
def seed_source(seed_id: str, layout: str) -> KernelSource:
    rows = 8 if seed_id == "sm80/skinny" else 256
    gpu = A100 if seed_id == "sm80/mma_streamk" else H200  # what it is offered for
    acc = "float16" if seed_id == "sm90a/wgmma_half" else "float32"
    key = GemmKey.dense(rows, 256, 1024, gpu=gpu, layout=layout, acc=acc)
    return next(s for s in generate.candidates(key) if s.header.id == seed_id)


any_case = st.builds(
    Case, m=small, n=small, k=small, batch=st.integers(1, 4),
    shared=st.sampled_from(["", "a", "b", "ab"]),
    pad=st.tuples(*[st.integers(0, 9)] * 3), offset=st.tuples(*[st.integers(0, 9)] * 3),
    gap=st.integers(0, 9), values=st.sampled_from(list(CLASSES)), seed=st.integers(0, 9),
)  # fmt: skip


@given(case=any_case, requires=st.sampled_from(list(REQUIRES.values())), layout=layouts)
def test_a_repaired_case_is_admitted_and_keeps_its_values(case, requires, layout):
    source = contract(requires, layout)
    found = repair(case, source, H200)
    assume(found is not None)
    assert source.accepts(found.problem(layout), H200)
    assert (found.values, found.seed, found.batch) == (case.values, case.seed, case.batch)
    assert found.m >= case.m


@given(case=any_case, layout=layouts)
def test_a_case_that_is_admitted_is_not_changed(case, layout):
    assert repair(case, contract("", layout), H200) == case


def test_a_contract_for_few_rows_or_columns_gets_as_many_as_it_takes():
    assert repair(Case(70, 9, 5), contract('"m <= 5"'), H200) == Case(4, 9, 5)
    assert repair(Case(70, 9, 5), contract('"n <= 2"'), H200) == Case(70, 2, 5)


def test_a_contract_that_nothing_meets_repairs_to_none():
    assert repair(Case(8, 8, 8), contract('"m > 1000000"'), H200) is None


@given(
    m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 5000),
    batch=st.integers(1, 100), requires=st.sampled_from(["", '"m % 64 == 0"']),
)  # fmt: skip
def test_a_case_that_is_too_large_is_scaled_down_and_keeps_its_edges(m, n, k, batch, requires):
    wanted = Case(m, n, k, batch)
    found = repair(wanted, contract(requires), H200, most_products=1 << 17)
    assert found.products <= 4 << 17
    if requires:
        assert found.m % 64 == 0
    elif wanted.products <= 1 << 17:
        assert found == wanted
    else:
        assert [x % 16 for x in (found.m, found.n, found.k)] == [m % 16, n % 16, k % 16]
        assert min(found.m, found.n, found.k) >= min(m, n, k, 16)


@pytest.mark.parametrize("seed_id", generate.seed_texts())
@given(data=st.data(), layout=layouts)
def test_every_drawn_case_is_inside_the_seeds_contract(seed_id, data, layout):
    source = seed_source(seed_id, layout)
    case = data.draw(cases(source, H200, ("normal", "integers")))
    assert source.accepts(case.problem(layout), H200)
    assert case.values in ("normal", "integers")


@given(case=any_case, layout=layouts)
def test_the_alignment_divides_every_start_and_stride(case, layout):
    p = case.problem(layout)
    elements = (*case.offset, p.lda, p.ldb, p.ldc, p.stride_a, p.stride_b, p.stride_c)
    assert all(2 * count % p.align == 0 for count in elements)


@given(
    m=small, n=small, k=small, batch=st.integers(1, 3), layout=layouts,
    shared=st.sampled_from(["", "a", "b", "ab"]), align=st.sampled_from([2, 4, 8, 16]),
)  # fmt: skip
def test_the_keys_own_case_states_the_keys_problem(m, n, k, batch, layout, shared, align):
    key = GemmKey(m=m, n=n, k=k, batch=batch, layout=layout, shared=shared, align=align, gpu=H200)
    assert case_of(key.problem(), layout).problem(layout) == key.problem()


def test_the_tile_sizes_of_a_kernel_are_its_edges():
    text = generate.seed_text("sm80/mma_multistage")
    values = {"TILE_M": 64, "TILE_N": 32, "TILE_K": 64, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 4,
              "SPLIT": 1, "GROUP": 8}  # fmt: skip
    source = KernelSource(text=instantiate(text, values), arch="sm_80")
    assert {31, 32, 33, 63, 64, 65, 4 * 64 + 8} <= set(tile_sizes(source))


def test_a_counterexample_names_what_differs_from_a_plain_case():
    assert Case(1, 2, 3).as_data() == {"m": 1, "n": 2, "k": 3}
    assert dataclasses.replace(Case(1, 2, 3), gap=8).as_data()["gap"] == 8
