"""The error bound: every honest float32 sum is inside it, every planted mistake is outside."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l2tune.runtime import reference
from l2tune.runtime.reference import error_ratio, split_ratio, suspect_ratio
from l2tune.verify.values import CLASSES, draw, is_exact

FINITE = [name for name in CLASSES if name not in ("nonfinite", "largest")]
dtypes = st.sampled_from([torch.float16, torch.bfloat16])
dims = st.integers(1, 70)  # crosses 16, 32 and 64, the tile edges kernels get wrong
seeds = st.integers(0, 2**31 - 1)


def pair(values, m, n, k, *, dtype=torch.float16, seed=0):
    a, b = draw(values, (1, m, k), (1, k, n), dtype=dtype, device="cpu", seed=seed)
    return a[0], b[0]


def summed(a, b, order, *, block=1, acc=torch.float32):
    """The product with `block` terms added at once, each running sum rounded to `acc`."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=acc)
    for picks in order.split(block):
        total = (total.double() + a[:, picks].double() @ b[picks].double()).to(acc)
    return total.to(a.dtype)


def ratio(a, b, c, **options) -> float:
    return error_ratio(a, b, c, **options).item()


@settings(max_examples=100)
@given(
    values=st.sampled_from([*FINITE, "largest"]), m=dims, n=dims, k=st.integers(1, 200),
    dtype=dtypes, seed=seeds, block=st.sampled_from([1, 4, 16]),
)  # fmt: skip
def test_a_float32_sum_in_any_order_stays_inside_the_bound(values, m, n, k, dtype, seed, block):
    a, b = pair(values, m, n, k, dtype=dtype, seed=seed)
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    c = summed(a, b, order, block=block)
    assert ratio(a, b, c, exact=is_exact(values)) <= 1.0, f"{values} {m=} {n=} {k=}"


@given(seed=seeds, k=st.sampled_from([64, 256, 2048]), dtype=dtypes)
def test_small_values_do_not_hide_zeros_a_factor_or_another_product(seed, k, dtype):
    a, b = pair("normal", 48, 40, k, dtype=dtype, seed=seed)
    a, b = (a * 0.01).to(dtype), (b * 0.01).to(dtype)
    c = (a.double() @ b.double()).to(dtype)
    assert ratio(a, b, c) <= 1.0
    assert ratio(a, b, torch.zeros_like(c)) > 1.0
    assert ratio(a, b, (c.double() * 1.02).to(dtype)) > 1.0
    other, _ = pair("normal", 48, 40, k, dtype=dtype, seed=seed + 1)
    assert ratio(a, b, ((other * 0.01).double() @ b.double()).to(dtype)) > 1.0


@pytest.mark.parametrize("shape", [(70, 50), (3, 20, 50)])
@pytest.mark.parametrize("wrong", ["", "zero", "nan", "a tail of k", "a row", "in small columns"])
def test_what_is_wrong_in_a_large_result_is_among_the_suspects(shape, wrong, monkeypatch):
    monkeypatch.setattr(reference, "_SUSPECT_ELEMENTS", 300)  # several pieces
    a, b = pair("normal", shape[-2], shape[-1], 128, seed=len(wrong))
    b[:, ::2] *= 64  # a rounding there is larger than many an element elsewhere
    a = a.expand(*shape[:-1], 128)
    other = (a.float() @ b.float()).half()
    c = (a.double() @ b.double()).half()
    place = (*(size - 1 for size in shape[:-1]), 1)
    if wrong in ("zero", "nan"):
        c[place] = 0.0 if wrong == "zero" else torch.nan
    elif wrong == "a tail of k":
        c = (a[..., :120].double() @ b[:120].double()).half()
    elif wrong == "a row":
        c[place[:-1]] = c[(0,) * (len(shape) - 1)] + 1
    elif wrong:
        c[..., 1::2] *= 1.01
    assert (suspect_ratio(a, b, c, other).item() > 1.0) == bool(wrong)


def test_a_result_is_not_blamed_for_what_the_other_lacks():
    a, b = pair("normal", 40, 48, 256, seed=3)
    c = (a.double() @ b.double()).half()
    noise = torch.randn(c.shape, generator=torch.Generator().manual_seed(0))
    rough = c + (c.float().std() * 2e-3 * noise).half()
    assert suspect_ratio(a, b, c, rough).item() <= 1.0
    assert suspect_ratio(a, b, rough, c).item() > 1.0
    c[7, 8] += 1
    assert suspect_ratio(a, b, c, rough).item() > 1.0


def test_a_suspect_that_overflows_as_it_must_is_right():
    a, b = torch.full((8, 64), 300.0).half(), torch.full((64, 8), 300.0).half()
    infinite = torch.full((8, 8), torch.inf).half()
    assert suspect_ratio(a, b, infinite, infinite).item() <= 1.0
    assert suspect_ratio(a, b, torch.full_like(infinite, 65504.0), infinite).item() > 1.0
    a[1:] /= 1024
    b[:, 0] *= 200  # an infinity in each row
    c = (a.double() @ b.double()).half()
    assert suspect_ratio(a, b, c, c).item() <= 1.0
    mistaken = c.clone()
    mistaken[3, 4] *= 2
    assert suspect_ratio(a, b, mistaken, c).item() > 1.0


@given(seed=seeds)
def test_large_values_and_long_sums_do_not_refuse_an_honest_kernel(seed):
    a, b = (100 * x for x in pair("normal", 16, 16, 8192, dtype=torch.bfloat16, seed=seed))
    c = (a.float() @ b.float()).bfloat16()
    assert ratio(a, b, c) <= 1.0


@given(k=st.integers(2, 300), lost=st.integers(1, 40), seed=seeds)
def test_a_dropped_tail_of_k_is_seen_with_integers(k, lost, seed):
    a, b = pair("integers", 64, 64, k, seed=seed)
    kept = max(1, k - lost)
    c = (a[:, :kept].double() @ b[:kept].double()).half()
    assert ratio(a, b, c, exact=True) > 1.0


@pytest.mark.parametrize("k", [32, 64, 96, 256, 1024, 2048])
@pytest.mark.parametrize("block", [1, 8, 16])
def test_half_accumulation_is_seen_with_the_accumulator_class(k, block):
    a, b = pair("accumulator", 64, 64, k, seed=k)
    order = torch.arange(k)
    assert ratio(a, b, summed(a, b, order, block=block), exact=True) <= 1.0
    c = summed(a, b, order, block=block, acc=torch.float16)
    assert ratio(a, b, c, exact=True) > 1.0


@settings(max_examples=100)
@given(
    values=st.sampled_from([*FINITE, "largest"]), m=dims, n=dims, k=st.integers(1, 200),
    seed=seeds, block=st.sampled_from([1, 4, 16]),
)  # fmt: skip
def test_a_float16_sum_in_any_order_is_admitted_where_it_is_declared(values, m, n, k, seed, block):
    a, b = pair(values, m, n, k, seed=seed)
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    c = summed(a, b, order, block=block, acc=torch.float16)
    assert ratio(a, b, c, acc="float16", exact=is_exact(values)) <= 1.0, f"{values} {m=} {n=} {k=}"


@pytest.mark.parametrize("values", ["permutation", "magnitudes"])
@pytest.mark.parametrize("k", [600, 4096])
def test_a_dropped_tail_of_a_float16_sum_is_seen_however_long(values, k):
    a, b = pair(values, 64, 64, k, seed=k)
    a[:, -16:] = b[-16:] = 1
    order = torch.arange(k)
    whole, dropped = (summed(a, b, o, block=16, acc=torch.float16) for o in (order, order[:-16]))
    assert ratio(a, b, whole, acc="float16", exact=True) <= 1.0
    assert ratio(a, b, dropped, acc="float16", exact=True) > 1.0


def test_float16_sums_that_overflow_on_their_way_are_not_judged():
    a, b = torch.full((1, 64), 200.0).half(), torch.full((64, 1), 16.0).half()
    a[:, 32:] *= -1  # up to 102400, and back to 0
    infinite = summed(a, b, torch.arange(64), acc=torch.float16)
    assert infinite.isinf().all()
    assert ratio(a, b, infinite, acc="float16") <= 1.0
    assert ratio(a, b, infinite) > 1.0
    a /= 4  # up to 25600, well within
    assert ratio(a, b, infinite, acc="float16") > 1.0


def test_a_skipped_tile_and_a_swapped_row_are_seen():
    a, b = pair("permutation", 64, 64, 32, seed=5)
    c = (a.double() @ b.double()).half()
    assert ratio(a, b, c, exact=True) <= 1.0
    swapped = c.clone()
    swapped[[3, 4]] = c[[4, 3]]
    assert ratio(a, b, swapped, exact=True) > 1.0
    c[48:, 48:] = 0
    assert ratio(a, b, c, exact=True) > 1.0


def one(value: float) -> torch.Tensor:
    return torch.tensor([[value]], dtype=torch.float16)


NAN, INF, BIG = torch.nan, torch.inf, 60000.0
RULES = [
    # a, b, c, admitted
    (NAN, 1.0, NAN, True), (NAN, 1.0, 0.0, False), (NAN, 1.0, INF, False),
    (INF, 1.0, INF, True), (INF, 1.0, -INF, False), (INF, 1.0, NAN, False),
    (INF, 1.0, 65504.0, False), (INF, 0.0, NAN, True), (INF, 0.0, 0.0, False),
    (1.0, 1.0, NAN, False), (1.0, 1.0, INF, False),
    (BIG, 2.0, INF, True), (BIG, 2.0, 65504.0, False), (BIG, -2.0, INF, False),
    (BIG, -2.0, -INF, True), (BIG, 1.0, INF, False),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "c", "admitted"), RULES)
def test_nan_and_infinity_must_be_where_they_belong(a, b, c, admitted):
    assert (ratio(one(a), one(b), one(c)) <= 1.0) is admitted


def test_batches_that_share_an_operand_are_all_judged():
    a, b = draw("integers", (3, 8, 9), (1, 9, 7), dtype=torch.float16, device="cpu", seed=1)
    c = (a.double() @ b.double()).half()
    assert ratio(a, b, c, exact=True) <= 1.0
    c[2, 7, 6] += 1
    assert ratio(a, b, c, exact=True) > 1.0


def halves(a, b, *, block=1, acc=torch.float32):
    """The product, and those with the second and the first half of a's columns set to zero."""
    first, second, half = a.clone(), a.clone(), a.shape[-1] // 2
    first[:, half:], second[:, :half] = 0, 0
    order = torch.arange(a.shape[-1])
    whole, *parts = (summed(x, b, order, block=block, acc=acc) for x in (a, first, second))
    return whole, tuple(parts)


@settings(max_examples=20)
@given(
    values=st.sampled_from([*FINITE, "largest"]), m=dims, n=dims, k=st.integers(1, 60),
    dtype=dtypes, seed=seeds, block=st.sampled_from([1, 16]),
)  # fmt: skip
def test_honest_halves_add_up_to_the_whole(values, m, n, k, dtype, seed, block):
    a, b = pair(values, m, n, k, dtype=dtype, seed=seed)
    whole, parts = halves(a, b, block=block)
    assert split_ratio(a, b, whole, parts, exact=is_exact(values)).item() <= 1.0
    if dtype is torch.float16:
        whole, parts = halves(a, b, block=block, acc=torch.float16)
        off = split_ratio(a, b, whole, parts, acc="float16", exact=is_exact(values))
        assert off.item() <= 1.0


@given(k=st.integers(2, 300), seed=seeds)
def test_one_lost_product_breaks_the_sum_of_the_halves(k, seed):
    a, b = pair("integers", 8, 8, k, seed=seed)
    whole, (first, second) = halves(a, b)
    second[3, 5] -= 1
    assert split_ratio(a, b, whole, (first, second), exact=True).item() > 1.0
    a, b = pair("magnitudes", 8, 8, k, seed=seed)
    a[3] = a[3].sign()
    whole, (first, second) = halves(a, b, acc=torch.float16)
    second[3, 5] -= 1
    assert split_ratio(a, b, whole, (first, second), acc="float16", exact=True).item() > 1.0


def test_halves_lose_a_tile_or_hold_a_nan():
    a, b = pair("normal", 48, 40, 256)
    whole, (first, second) = halves(a, b)
    broken = first.clone()
    broken[16:, 16:] = 0
    assert split_ratio(a, b, whole, (broken, second)).item() > 1.0
    broken[16:, 16:] = torch.nan
    assert split_ratio(a, b, whole, (broken, second)).item() == torch.inf
