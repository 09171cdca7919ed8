"""The times that bound a product from below."""

import pytest
from hypothesis import given
from samples import keys

from l2tune.spec.gpu import A100, H200
from l2tune.spec.key import GemmKey
from l2tune.spec.roofline import PEAKS, floor_us, physical_minimum_us


@pytest.mark.parametrize(
    ("gpu", "size", "expected_us"),
    [(H200, 4096, 138.9), (H200, 8192, 1111.2), (A100, 4096, 440.5), (H200, 64, 0.00053)],
)
def test_a_square_product_takes_as_long_as_its_flops_at_the_peak(gpu, size, expected_us):
    key = GemmKey.dense(size, size, size, gpu=gpu)
    assert physical_minimum_us(key) == pytest.approx(expected_us, rel=0.01)


def test_operands_that_fit_the_l2_are_not_bound_by_memory():
    fits = GemmKey.dense(4096, 1, 4096, gpu=H200)
    assert fits.bytes_moved < PEAKS[H200.name].l2_bytes
    assert physical_minimum_us(fits) == pytest.approx(fits.flops / 989.5e6)
    beyond = GemmKey.dense(16384, 1, 16384, gpu=H200)
    expected_us = (beyond.bytes_moved - (60 << 20)) / 4.8e6
    assert physical_minimum_us(beyond) == pytest.approx(expected_us)


@pytest.mark.parametrize(
    ("shape", "expected_us"),
    [((64, 64, 8192), 2.5), ((512, 64, 16384), 6.4), ((4096, 4096, 128), 10.3)],
)
def test_the_floor_on_an_h200_is_the_measured_one(shape, expected_us):
    assert floor_us(GemmKey.dense(*shape, gpu=H200)) == pytest.approx(expected_us, abs=0.06)


@given(keys())
def test_nothing_to_aim_at_lies_below_what_is_possible(key):
    assert (floor_us(key) > physical_minimum_us(key)) == (key.gpu.name in PEAKS)


def test_an_unknown_gpu_has_no_bounds():
    key = GemmKey.dense(64, 64, 64, gpu=H200.model_copy(update={"name": "NVIDIA H20"}))
    assert floor_us(key) == physical_minimum_us(key) == 0
