"""The cost model: bounded from below, monotone, and no guess where rates are unknown."""

import dataclasses

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from l2tune.errors import UnsupportedProblemError
from l2tune.measure import estimate
from l2tune.measure.work import Work
from l2tune.spec.gpu import A100, H200
from l2tune.spec.key import GemmKey
from l2tune.spec.roofline import LAUNCH_US, floor_us

amounts = st.floats(0, 1e15)
works = st.builds(Work, amounts, amounts, amounts, amounts, amounts, amounts)
keys = st.builds(
    lambda m, n, k, gpu: GemmKey.dense(m, n, k, gpu=gpu),
    *(st.integers(1, 20000) for _ in range(3)),
    st.sampled_from([H200, A100]),
)
FIELDS = [field.name for field in dataclasses.fields(Work)]


def modelled(key: GemmKey, work: Work):
    return estimate(samples.verified(key).compiled, key, {0: work})


@given(keys, works)
def test_what_does_all_the_products_is_never_below_the_floor(key, work):
    enough = dataclasses.replace(work, wgmma_flops=work.wgmma_flops + key.flops)
    found = modelled(key, enough)
    assert found.us >= floor_us(key) * (1 - 1e-9)
    assert found.terms_us["launch"] == LAUNCH_US


@given(keys, works, st.sampled_from(FIELDS), st.floats(1, 100))
def test_more_of_anything_never_makes_it_faster(key, work, name, factor):
    more = dataclasses.replace(work, **{name: getattr(work, name) * factor})
    assert modelled(key, more).us >= modelled(key, work).us


def test_a_tile_more_than_there_are_multiprocessors_costs_a_whole_one_more():
    # The sample kernel has a block for 256 elements, of which 8 fit on a multiprocessor.
    full = GemmKey.dense(256, 132, 64, gpu=H200)
    over = GemmKey.dense(256, 133, 64, gpu=H200)
    each = Work(wgmma_flops=1e9)
    one = modelled(full, each.times(132)).terms_us["tensor"]
    assert modelled(over, each.times(133)).terms_us["tensor"] == pytest.approx(2 * one)


def test_mma_is_slower_than_wgmma_on_hopper_alone():
    for gpu, ratio in ((H200, 1 / 0.629), (A100, 1.0)):
        key = GemmKey.dense(4096, 4096, 64, gpu=gpu)
        old, new = modelled(key, Work(mma_flops=1e12)), modelled(key, Work(wgmma_flops=1e12))
        assert old.terms_us["tensor"] == pytest.approx(ratio * new.terms_us["tensor"])


def test_a_gpu_of_unknown_rates_is_not_guessed_at():
    key = GemmKey.dense(64, 64, 64, gpu=H200.model_copy(update={"name": "NVIDIA H20"}))
    with pytest.raises(UnsupportedProblemError, match="rates are not known"):
        modelled(key, Work())
