"""Conversions against exact arithmetic and the PTX manual's special cases."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

REGISTER = {8: "rs", 16: "rs", 32: "r", 64: "rd"}
FLOAT_REGISTER = {"f16": "rs", "bf16": "rs", "f32": "f", "f64": "fd"}
INTEGERS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]


def limits(ptx_type):
    bits = int(ptx_type[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if ptx_type[0] == "s" else (0, (1 << bits) - 1)


def in_range(ptx_type):
    low, high = limits(ptx_type)
    number = st.sampled_from([low, high, 0, 1]) | st.integers(low, high)
    return st.lists(number, min_size=32, max_size=32)


@pytest.mark.parametrize("saturates", ["", ".sat"])
@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("result", INTEGERS)
@given(data=st.data())
def test_integers_wrap_or_saturate(run_one, result, source, saturates, data):
    a = data.draw(in_range(source))
    to, of = REGISTER[int(result[1:])], REGISTER[int(source[1:])]
    held = 8 * {"rs": 2, "r": 4, "rd": 8}[to]
    mask = (1 << {"rs": 16, "r": 32, "rd": 64}[of]) - 1
    inputs = {f"{of}1": np.array([x & mask for x in a], np.uint64)}
    found = run_one(f"cvt{saturates}.{result}.{source} %{to}2, %{of}1;", **inputs)[f"{to}2"]
    low, high = limits(result)
    for x, bits in zip(a, found.tolist(), strict=True):
        y = min(max(x, low), high) if saturates else (x - low) % (high - low + 1) + low
        assert bits == y & (1 << held) - 1, x


@pytest.mark.parametrize("result", ["s32", "u32", "s64", "u64", "u8", "s16"])
@pytest.mark.parametrize("direction", ["rni", "rzi", "rmi", "rpi"])
@given(a=st.lists(st.floats(width=32), min_size=32, max_size=32))
def test_floats_clamp_to_the_integer(run_one, result, direction, a):
    to = REGISTER[int(result[1:])]
    found = run_one(f"cvt.{direction}.{result}.f32 %{to}2, %f1;", f1=np.array(a, np.float32))
    low, high = limits(result)
    mask = (1 << {"rs": 16, "r": 32, "rd": 64}[to]) - 1
    for x, bits in zip(a, found[f"{to}2"].tolist(), strict=True):
        if x != x:
            wanted = 1 << 63 if result.endswith("64") else 0
        elif abs(x) == float("inf"):
            wanted = high if x > 0 else low
        else:
            exact = Fraction(x)
            whole = {
                "rni": round(exact),
                "rzi": int(exact),
                "rmi": exact // 1,
                "rpi": -(-exact // 1),
            }
            wanted = min(max(whole[direction], low), high)
        assert bits == wanted & mask, x


def neighbours(number):
    """The float32 numbers just below and just above."""
    value = np.float32(number)
    ways = (np.float32(-np.inf), np.float32(np.inf))
    return [Fraction(float(np.nextafter(value, way))) for way in ways]


@pytest.mark.parametrize("source", ["u32", "s32", "u64", "s64"])
@given(data=st.data())
def test_integers_round_to_float_once(run_one, source, data):
    a = data.draw(in_range(source))
    r = REGISTER[int(source[1:])]
    inputs = {f"{r}1": np.array([x & (1 << int(source[1:])) - 1 for x in a], np.uint64)}
    found = run_one(
        f"cvt.rn.f64.{source} %fd1, %{r}1; cvt.rn.f32.{source} %f1, %{r}1;"
        f"cvt.rz.f32.{source} %f2, %{r}1; cvt.rp.f64.{source} %fd2, %{r}1;",
        **inputs,
    )
    doubles, above = (found[n].view(np.float64).tolist() for n in ("fd1", "fd2"))
    nearest, toward = (found[n].view(np.float32).tolist() for n in ("f1", "f2"))
    for i, x in enumerate(a):
        assert doubles[i] == float(x)
        assert Fraction(np.nextafter(above[i], -np.inf)) < x <= Fraction(above[i])
        larger = [abs(n) for n in neighbours(toward[i]) if abs(n) > abs(toward[i])]
        assert abs(Fraction(toward[i])) <= abs(x) < min(larger), x
        step = abs(Fraction(nearest[i]) - x)
        assert all(step <= abs(neighbour - x) for neighbour in neighbours(nearest[i])), x


@given(a=st.lists(st.floats(width=32), min_size=32, max_size=32))
def test_halves_of_float32_are_numpys(run_one, a):
    a = np.array(a, np.float32)
    found = run_one(
        "cvt.rn.f16.f32 %rs1, %f1; cvt.rn.f16x2.f32 %r1, %f1, 0f3F800000; cvt.f32.f16 %f2, %rs1;"
        "cvt.rz.f16.f32 %rs2, %f1;",
        f1=a,
    )
    with np.errstate(all="ignore"):
        half = a.astype(np.float16)
    bits = np.where(np.isnan(half), 0x7FFF, half.view(np.uint16))
    assert (found["rs1"] == bits).all()
    assert (found["r1"] == (bits.astype(np.uint32) << 16 | 0x3C00)).all()
    back = found["f2"].view(np.float32)
    assert np.array_equal(back, half.astype(np.float32), equal_nan=True)
    toward_zero = found["rs2"].view(np.float16).astype(np.float32)
    number = ~np.isnan(a)
    assert (np.abs(toward_zero[number]) <= np.abs(a[number])).all()
    finite = np.isfinite(a)
    assert np.isfinite(toward_zero[finite]).all(), "rz never reaches infinity"


@given(a=st.lists(st.floats(width=32), min_size=32, max_size=32))
def test_bf16_is_the_upper_half_rounded_to_even(run_one, a):
    found = run_one(
        "cvt.rn.bf16.f32 %rs1, %f1; cvt.rn.bf16x2.f32 %r1, 0f3F800000, %f1;"
        "cvt.rz.bf16.f32 %rs2, %f1;cvt.f32.bf16 %f2, %rs1;",
        f1=np.array(a, np.float32),
    )
    for i, x in enumerate(a):
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
        wanted = 0x7FFF if x != x else bits + 0x7FFF + (bits >> 16 & 1) >> 16
        assert int(found["rs1"][i]) == wanted, x
        assert int(found["r1"][i]) == 0x3F80 << 16 | wanted
        assert int(found["rs2"][i]) == (0x7FFF if x != x else bits >> 16)
        assert int(found["f2"][i]) == (wanted << 16 if x == x else int(found["f2"][i]))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("cvt.sat.f32.f32 %f2, 0fC0000000; mov.b32 %r2, %f2;", 0),
        ("cvt.rni.f32.f32 %f2, 0f40200000; mov.b32 %r2, %f2;", 0x40000000),
        ("cvt.ftz.f32.f32 %f2, 0f80000001; mov.b32 %r2, %f2;", 0x80000000),
        ("cvt.rn.relu.f16x2.f32 %r2, 0fBF800000, 0f3F800000;", 0x00003C00),
        ("cvt.rn.f32.f64 %f2, 0d3FD5555555555555; mov.b32 %r2, %f2;", 0x3EAAAAAB),
        ("cvt.rz.f32.f64 %f2, 0d3FE5555555555555; mov.b32 %r2, %f2;", 0x3F2AAAAA),
        ("cvt.rna.tf32.f32 %r2, 0f3F801000;", 0x3F802000),
        ("cvt.rzi.s32.f64 %r2, 0d7FF8000000000000;", 0x80000000),
        ("cvt.pack.sat.u8.s32.b32 %r2, 300, -5, 0x1234;", 0x1234FF00),
        ("cvt.pack.sat.s16.s32 %r2, 70000, -70000;", 0x7FFF8000),
    ],
)
def test_single_forms(run_one, text, wanted):
    assert hex(int(run_one(text)["r2"][0])) == hex(wanted)
