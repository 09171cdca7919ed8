"""The value classes hold what the checks rely on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from l2tune.verify.values import CLASSES, draw, is_exact

EXACT = [name for name in CLASSES if is_exact(name)]
dtypes = st.sampled_from([torch.float16, torch.bfloat16])
dims = st.integers(1, 40)
seeds = st.integers(0, 2**31 - 1)


def _pair(name, m, n, k, dtype, seed):
    return draw(name, (1, m, k), (1, k, n), dtype=dtype, device="cpu", seed=seed)


@given(name=st.sampled_from(EXACT), m=dims, n=dims, k=st.integers(1, 300), dtype=dtypes, seed=seeds)
def test_an_exact_class_has_one_float32_sum_whatever_the_order(name, m, n, k, dtype, seed):
    a, b = (x[0] for x in _pair(name, m, n, k, dtype, seed))
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    total = torch.zeros(m, n)
    for i in order.tolist():
        total += a[:, i : i + 1].float() * b[i : i + 1].float()
    assert torch.equal(total.double(), a.double() @ b.double())


@given(name=st.sampled_from(list(CLASSES)), m=dims, n=dims, k=dims, dtype=dtypes, seed=seeds)
def test_the_same_seed_draws_the_same_values_of_the_asked_type(name, m, n, k, dtype, seed):
    first, again = _pair(name, m, n, k, dtype, seed), _pair(name, m, n, k, dtype, seed)
    for x, y in zip(first, again, strict=True):
        assert x.dtype == dtype
        assert torch.equal(x.view(torch.int16), y.view(torch.int16))


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "nonfinite"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_only_the_nonfinite_class_draws_nan_and_infinity(name, dtype):
    a, b = _pair(name, 65, 33, 129, dtype, 0)
    assert a.isfinite().all()
    assert b.isfinite().all()


def test_the_nonfinite_class_reaches_the_last_row_and_column():
    drawn = [_pair("nonfinite", 65, 33, 129, torch.float16, seed)[0] for seed in range(8)]
    assert any(a[0, -1, -1].isnan() for a in drawn)
    assert any(a.isinf().any() for a in drawn)


def test_the_nonfinite_class_has_zeros_that_meet_infinities():
    drawn = [_pair("nonfinite", 65, 33, 129, torch.float16, seed) for seed in range(8)]
    products = [(a[0, :, :, None] == 0) & b[0].isinf() for a, b in drawn]
    assert any(product.any() for product in products)


def test_the_permutation_class_shows_each_element_as_itself():
    a, b = _pair("permutation", 8, 8, 8, torch.float16, 3)
    picks = a[0].argmax(dim=-1)
    assert torch.equal(a[0] @ b[0], b[0][picks])


def test_the_subnormal_class_is_subnormal():
    a, _ = _pair("subnormal", 64, 8, 64, torch.float16, 0)
    tiny = torch.finfo(torch.float16).smallest_normal
    assert (a.abs() < tiny).float().mean() > 0.9
    assert (a != 0).float().mean() > 0.9
