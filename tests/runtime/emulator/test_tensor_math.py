"""Sums as tensor cores make them, against Fractions worked out from the papers' description."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2tune.runtime.emulator.ops.tensor_math import (
    EXACT,
    GENERATIONS,
    TensorCore,
    dot_accumulate,
    values_of,
)


def exponent(value: float, least: int) -> int:
    """Floor of the binary logarithm, subnormals at the least exponent."""
    return max(int(np.frexp(value)[1]) - 1, least)


def truncate(value: Fraction, unit: Fraction) -> Fraction:
    return (abs(value) // unit) * unit * (1 if value >= 0 else -1)


def step(a, b, c, bits, least):
    """One group, in exact arithmetic: align to the largest exponent, cut, add, cut to float32."""
    addends = [
        (
            Fraction(float(x)) * Fraction(float(y)),
            exponent(float(x), least) + exponent(float(y), least),
        )
        for x, y in zip(a, b, strict=True)
    ]
    addends.append((Fraction(float(c)), exponent(float(c), -126)))
    top = max(e if value else -126 for value, e in addends)
    unit = Fraction(2) ** (top - bits)
    total = sum(truncate(value, unit) for value, _ in addends)
    if not total:
        return 0.0
    size = int(np.frexp(float(total))[1]) - 1
    if abs(total) < Fraction(2) ** size:  # the conversion rounded up to a power of two
        size -= 1
    return float(truncate(total, Fraction(2) ** (max(size, -126) - 23)))


def bits16(values, element):
    wide = np.asarray(values, dtype=np.float32)
    if element == "f16":
        return wide.astype(np.float16).view(np.uint16)
    return (wide.view(np.uint32) >> 16).astype(np.uint16)


numbers = st.builds(
    lambda m, e, s: s * m * 2.0**e,
    st.floats(1, 1.99),
    st.integers(-12, 12),
    st.sampled_from([-1, 1]),
) | st.just(0.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(numbers, min_size=16, max_size=16), st.lists(numbers, min_size=16, max_size=16),
    numbers, st.sampled_from(["f16", "bf16"]), st.sampled_from(["sm_80", "sm_90a"]),
)  # fmt: skip
def test_a_dot_product_is_cut_group_by_group_as_the_generation_does(a, b, c, element, target):
    core, least = GENERATIONS[target], -14 if element == "f16" else -126
    left, right = bits16(a, element)[None], bits16(b, element)[:, None]
    start = np.full((1, 1), c, dtype=np.float32).view(np.uint32)
    found = dot_accumulate(left, right, start, element=element, accumulator="f32", core=core)
    total = float(np.float32(c))
    x, y = values_of(left, element)[0], values_of(right, element)[:, 0]
    for place in range(0, 16, core.group):
        piece = slice(place, place + core.group)
        total = step(x[piece], y[piece], total, core.fraction_bits, least)
    assert found.view(np.float32)[0, 0] == np.float32(total)


def test_what_lies_below_the_kept_bits_is_lost_even_where_it_would_add_up():
    a, b = np.full((1, 16), 2.0**-13), np.ones((16, 1))
    b[0], a[0, 0] = 1.0, 1.0
    b[1:] = 2.0**-13
    one = np.zeros((1, 1), dtype=np.uint32)
    args = bits16(a, "f16"), bits16(b, "f16"), one
    found = dot_accumulate(*args, element="f16", accumulator="f32", core=GENERATIONS["sm_80"])
    exact = dot_accumulate(*args, element="f16", accumulator="f32", core=EXACT)
    assert found.view(np.float32)[0, 0] == 1.0
    assert exact.view(np.float32)[0, 0] == np.float32(1 + 15 * 2.0**-26)


@pytest.mark.parametrize("size", [(16, 8), (64, 64)])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_small_and_large_matrices_take_the_same_sums(size, element):
    rng = np.random.default_rng(5)
    m, n = size
    a, b = (
        bits16(rng.standard_normal((m, 16)), element),
        bits16(rng.standard_normal((16, n)), element),
    )
    c = rng.standard_normal((m, n)).astype(np.float32).view(np.uint32)
    kind = {"element": element, "accumulator": "f32", "core": GENERATIONS["sm_90a"]}
    whole = dot_accumulate(a, b, c, **kind)
    for i, j in [(0, 0), (m - 1, n - 1), (3, 5)]:
        one = dot_accumulate(a[i : i + 1], b[:, j : j + 1], c[i : i + 1, j : j + 1], **kind)
        assert one[0, 0] == whole[i, j]


def test_bfloat16_products_beyond_float32_are_still_aligned_to_their_exponents():
    a = bits16([[2.0**100, 2.0**-100]], "bf16")
    b = bits16([[2.0**27], [2.0**-100]], "bf16")
    c = np.zeros((1, 1), dtype=np.uint32)
    kind = {"element": "bf16", "accumulator": "f32", "core": GENERATIONS["sm_90a"]}
    assert dot_accumulate(a, b, c, **kind).view(np.float32)[0, 0] == 2.0**127
    assert np.isinf(dot_accumulate(a, bits16([[2.0**28], [0]], "bf16"), c, **kind).view(np.float32))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([np.inf, 1], [1, 1], np.inf),
        ([np.inf, 1], [0, 1], np.nan),
        ([np.inf, -np.inf], [1, 1], np.nan),
    ],
)
def test_infinities_and_nan_go_through(a, b, expected):
    left, right = bits16([a], "f16"), bits16(b, "f16")[:, None]
    found = dot_accumulate(
        left, right, np.zeros((1, 1), np.uint32), element="f16", accumulator="f32",
        core=GENERATIONS["sm_90a"],
    )  # fmt: skip
    np.testing.assert_array_equal(found.view(np.float32)[0, 0], np.float32(expected))
    if np.isnan(expected):
        assert found[0, 0] == 0x7FFFFFFF


def test_a_half_accumulator_is_rounded_to_nearest_at_each_step():
    a, b = bits16([[1.0]], "f16"), bits16([[2.0**-11 * 3]], "f16")
    c = np.ones((1, 1), dtype=np.float16).view(np.uint16)
    found = dot_accumulate(
        a, b, c, element="f16", accumulator="f16", core=TensorCore(fraction_bits=25, group=16)
    )
    assert found.view(np.float16)[0, 0] == np.float16(1 + 2 * 2.0**-10)  # a tie, to even
