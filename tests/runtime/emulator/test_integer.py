"""Integer arithmetic against Python's integers, which have no width."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

REGISTER = {16: "rs", 32: "r", 64: "rd"}


def lanes(bits):
    """32 numbers, many of them at the edges of the type."""
    edges = [0, 1, 2, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1]
    number = st.sampled_from(edges) | st.integers(0, (1 << bits) - 1)
    return st.lists(number, min_size=32, max_size=32)


def value(bits, ptx_type):
    """A Python integer of raw bits."""
    width = int(ptx_type[1:])
    return bits - (1 << width) if ptx_type[0] == "s" and bits >> width - 1 else bits


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": lambda a, b: truncated(a, b) if b else -1,
    "rem": lambda a, b: a - b * truncated(a, b) if b else a,
}


@pytest.mark.parametrize("ptx_type", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", [*BINARY, "mul.hi"])
@given(data=st.data())
def test_two_operands_agree_with_integers_without_width(run_one, name, ptx_type, data):
    bits = int(ptx_type[1:])
    a, b = data.draw(lanes(bits)), data.draw(lanes(bits))
    r = REGISTER[bits]
    dtype = f"u{bits // 8}"
    inputs = {f"{r}1": np.array(a, dtype), f"{r}2": np.array(b, dtype)}
    found = run_one(f"{name}.{ptx_type} %{r}3, %{r}1, %{r}2;", **inputs)[f"{r}3"]
    exact = [(value(x, ptx_type), value(y, ptx_type)) for x, y in zip(a, b, strict=True)]
    function = BINARY.get(name) or (lambda x, y: x * y >> bits)
    wanted = [function(x, y) & ((1 << bits) - 1) for x, y in exact]
    assert found.tolist() == wanted, f"{exact}"


@pytest.mark.parametrize("ptx_type", ["u16", "s16", "u32", "s32"])
@given(data=st.data())
def test_wide_products_keep_every_bit(run_one, ptx_type, data):
    bits = int(ptx_type[1:])
    a, b, c = data.draw(lanes(bits)), data.draw(lanes(bits)), data.draw(lanes(2 * bits))
    r, w = REGISTER[bits], REGISTER[2 * bits]
    inputs = {f"{r}1": np.array(a, f"u{bits // 8}"), f"{r}2": np.array(b, f"u{bits // 8}"),
              f"{w}4": np.array(c, f"u{bits // 4}")}  # fmt: skip
    found = run_one(
        f"mul.wide.{ptx_type} %{w}5, %{r}1, %{r}2; mad.wide.{ptx_type} %{w}6, %{r}1, %{r}2, %{w}4;",
        **inputs,
    )
    products = [value(x, ptx_type) * value(y, ptx_type) for x, y in zip(a, b, strict=True)]
    mask = (1 << 2 * bits) - 1
    assert found[f"{w}5"].tolist() == [p & mask for p in products]
    assert found[f"{w}6"].tolist() == [p + z & mask for p, z in zip(products, c, strict=True)]


@given(a=lanes(64), b=lanes(64))
def test_carries_make_wider_sums_and_differences(run_one, a, b):
    split = {
        f"r{i}": np.array([x >> shift & 0xFFFFFFFF for x in numbers], "u4")
        for i, (numbers, shift) in enumerate([(a, 0), (a, 32), (b, 0), (b, 32)], 1)
    }
    found = run_one(
        "add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4;"
        "sub.cc.u32 %r7, %r1, %r3; subc.u32 %r8, %r2, %r4;",
        **split,
    )
    for low, high, sign in (("r5", "r6", 1), ("r7", "r8", -1)):
        joined = [
            x | y << 32 for x, y in zip(found[low].tolist(), found[high].tolist(), strict=True)
        ]
        assert joined == [x + sign * y & (1 << 64) - 1 for x, y in zip(a, b, strict=True)]


@given(a=lanes(32), b=lanes(32), c=lanes(32))
def test_saturated_and_summed_forms(run_one, a, b, c):
    found = run_one(
        "add.sat.s32 %r4, %r1, %r2; sub.sat.s32 %r5, %r1, %r2; sad.s32 %r6, %r1, %r2, %r3;"
        "mad.hi.sat.s32 %r7, %r1, %r2, %r3; mad.lo.s32 %r8, %r1, %r2, %r3;",
        r1=np.array(a, "u4"), r2=np.array(b, "u4"), r3=np.array(c, "u4"),
    )  # fmt: skip
    a, b, c = ([value(x, "s32") for x in numbers] for numbers in (a, b, c))

    def clamp(x):
        return min(max(x, -(2**31)), 2**31 - 1)

    formulas = {
        "r4": lambda x, y, z: clamp(x + y),
        "r5": lambda x, y, z: clamp(x - y),
        "r6": lambda x, y, z: abs(x - y) + z,
        "r7": lambda x, y, z: clamp((x * y >> 32) + z),
        "r8": lambda x, y, z: x * y + z,
    }
    for name, formula in formulas.items():
        wanted = [formula(*v) & 0xFFFFFFFF for v in zip(a, b, c, strict=True)]
        assert found[name].tolist() == wanted, name


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("abs.s32 %r3, %r1;", 0x80000000),
        ("neg.s32 %r3, %r2;", 0xFFFFFFFD),
        ("mul24.lo.u32 %r3, %r1, %r2;", 0),
        ("dp4a.u32.u32 %r3, 0x01020304, 0x05060708, %r2;", 5 + 12 + 21 + 32 + 3),
        ("dp4a.s32.s32 %r3, 0xFFFFFFFF, 0x01010101, %r2;", 0xFFFFFFFF),
        ("dp2a.lo.u32.u32 %r3, 0x00010002, 0x00000304, %r2;", 3 + 8 + 3),
        ("min.s16x2 %r3, 0xFFFF0001, 0x00010000;", 0xFFFF0000),
        ("max.relu.s32 %r3, -5, -6;", 0),
        ("add.u16x2 %r3, 0xFFFF0001, 0x00010001;", 0x00000002),
    ],
)
def test_single_forms(run_one, text, wanted):
    assert hex(int(run_one(text, r1=0x80000000, r2=3)["r3"][0])) == hex(wanted)


def test_lanes_outside_the_mask_keep_their_value(run_one):
    mask = np.arange(32) % 2 == 0
    found = run_one("add.s32 %r1, %r1, 1;", mask, r1=np.arange(32))["r1"]
    assert found.tolist() == [i + (i % 2 == 0) for i in range(32)]
