"""Float arithmetic against exact fractions, rounded once by an independent rounding."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

FORMATS = {"f16": (11, -24, 65504), "bf16": (8, -133, 2**128 - 2**120),
           "f32": (24, -149, 2**128 - 2**104), "f64": (53, -1074, 2**1024 - 2**971)}  # fmt: skip
WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
REGISTER = {16: "rs", 32: "f", 64: "fd"}
FORMULAS = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "mul": lambda a, b, c: a * b,
    "fma": lambda a, b, c: a * b + c,
}


def exact(bits, ptx_type):
    """A fraction, or None for an infinity or NaN."""
    width, (precision, smallest, _) = WIDTH[ptx_type], FORMATS[ptx_type]
    magnitude = bits & (1 << width - 1) - 1
    exponent, fraction = magnitude >> precision - 1, magnitude & (1 << precision - 1) - 1
    if exponent == (1 << width - precision) - 1:
        return None
    if exponent:
        fraction, exponent = fraction | 1 << precision - 1, exponent - 1
    value = Fraction(fraction) * Fraction(2) ** (exponent + smallest)
    return -value if bits >> width - 1 else value


def rounded(value, ptx_type, direction):
    """The fraction that the format rounds a fraction to; None beyond its largest."""
    precision, smallest, largest = FORMATS[ptx_type]
    size = abs(value)
    if not size:
        return value
    log = size.numerator.bit_length() - size.denominator.bit_length()
    log -= size < Fraction(2) ** log
    unit = Fraction(2) ** max(log - precision + 1, smallest)
    low = size // unit
    rest = size / unit - low
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1),
        "rz": False,
        "rm": value < 0 and rest > 0,
        "rp": value > 0 and rest > 0,
    }[direction]
    result = (low + up) * unit
    away = (
        direction == "rn" or (direction == "rp" and value > 0) or (direction == "rm" and value < 0)
    )
    if result > largest:
        return None if away else largest if value > 0 else -largest
    return result if value > 0 else -result


def numbers(ptx_type):
    """32 finite numbers: of every size, close to each other, halfway and subnormal."""
    width, precision = WIDTH[ptx_type], FORMATS[ptx_type][0]
    top = ((1 << width - precision) - 1) << precision - 1
    middle = top // 2 >> precision - 1 << precision - 1
    magnitude = (
        st.integers(0, top - 1)
        | st.integers(middle - (2 << precision), middle + (2 << precision))
        | st.integers(0, 40)
        | st.sampled_from([0, 1, middle, middle + 1, middle - 1, top - 1])
    )
    sign = st.sampled_from([0, 1 << width - 1])
    return st.lists(st.builds(int.__or__, magnitude, sign), min_size=32, max_size=32)


FORMS = [
    (name, t, d) for name in FORMULAS for t in ("f32", "f64") for d in ("rn", "rz", "rm", "rp")
]
FORMS += [(name, t, "rn") for name in FORMULAS for t in ("f16", "bf16")]


@pytest.mark.parametrize(("name", "ptx_type", "direction"), FORMS)
@given(data=st.data())
def test_arithmetic_rounds_the_exact_result_once(run_one, name, ptx_type, direction, data):
    width = WIDTH[ptx_type]
    r = REGISTER[width]
    sources = [data.draw(numbers(ptx_type)) for _ in range(3)]
    count = 3 if name == "fma" else 2
    text = f"{name}.{direction}.{ptx_type} %{r}4, " + ", ".join(
        f"%{r}{i + 1}" for i in range(count)
    )
    inputs = {f"{r}{i + 1}": np.array(s, f"u{width // 8}") for i, s in enumerate(sources)}
    found = run_one(text + ";", **inputs)[f"{r}4"].tolist()
    for lane, bits in enumerate(found):
        a, b, c = (exact(source[lane], ptx_type) for source in sources)
        wanted = rounded(FORMULAS[name](a, b, c), ptx_type, direction)
        assert exact(bits, ptx_type) == wanted, f"{lane=} {a=} {b=} {c=} found {bits:#x}"


def test_a_sum_that_rounding_twice_gets_wrong(run_one):
    """2**24 + 1 + 2**-30: a float64 sum lands on the half-way point, float32 must go up."""
    a, c = np.float32(2**-15), np.float32(2**24)
    product = np.float32(2**15 + 2**-8)  # times a: 1 + 2**-23
    found = run_one("fma.rn.f32 %f4, %f1, %f2, %f3;", f1=a, f2=product, f3=c)["f4"]
    assert found.view(np.float32)[0] == np.float32(2**24 + 2)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("add.f32 %f4, 0f7F800000, 0fFF800000;", 0x7FFFFFFF),
        ("mul.f32 %f4, 0f7FC01234, %f1;", 0x7FFFFFFF),
        ("add.sat.f32 %f4, %f1, %f1;", 0x3F800000),
        ("add.sat.f32 %f4, 0f7FC00000, %f1;", 0),
        ("mul.ftz.f32 %f4, 0f00800000, 0f3F000000;", 0),
        ("add.ftz.f32 %f4, 0f80000001, 0f80000001;", 0x80000000),
        ("add.rm.f32 %f4, %f1, 0fBF800000;", 0x80000000),
        ("add.rn.f32 %f4, %f1, 0fBF800000;", 0),
        ("div.rn.f32 %f4, %f1, 0f40400000;", 0x3EAAAAAB),
        ("div.rz.f32 %f4, %f1, 0f40400000;", 0x3EAAAAAA),
        ("div.rm.f32 %f4, 0fBF800000, 0f40400000;", 0xBEAAAAAB),
        ("rcp.rn.f32 %f4, 0f40800000;", 0x3E800000),
        ("rcp.approx.ftz.f32 %f4, 0f00000000;", 0x7F800000),
        ("sqrt.rn.f32 %f4, 0f40000000;", 0x3FB504F3),
        ("sqrt.rp.f32 %f4, 0f40000000;", 0x3FB504F4),
        ("rsqrt.approx.f32 %f4, 0f40800000;", 0x3F000000),
        ("ex2.approx.ftz.f32 %f4, 0f40400000;", 0x41000000),
        ("lg2.approx.f32 %f4, 0f41000000;", 0x40400000),
        ("sin.approx.f32 %f4, 0f00000000;", 0),
        ("cos.approx.f32 %f4, 0f00000000;", 0x3F800000),
        ("tanh.approx.f32 %f4, 0f7F800000;", 0x3F800000),
        ("min.f32 %f4, 0f7FC00000, %f1;", 0x3F800000),
        ("max.NaN.f32 %f4, 0f7FC00000, %f1;", 0x7FFFFFFF),
        ("max.f32 %f4, 0f80000000, 0f00000000;", 0),
        ("min.f32 %f4, 0f00000000, 0f80000000;", 0x80000000),
        ("min.xorsign.abs.f32 %f4, 0fC0000000, %f1;", 0xBF800000),
        ("neg.f32 %f4, 0f00000000;", 0x80000000),
        ("abs.f32 %f4, 0fBF800000;", 0x3F800000),
        ("copysign.f32 %f4, 0f80000000, %f1;", 0xBF800000),
    ],
)
def test_single_forms(run_one, text, wanted):
    assert hex(int(run_one(text, f1=0x3F800000)["f4"][0])) == hex(wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("add.f16x2 %r3, %r1, %r2;", 0x42004000),
        ("add.rn.bf16x2 %r3, 0x3F804000, 0x3F803F80;", 0x40004040),
        ("fma.rn.f16x2 %r3, %r1, %r2, %r1;", 0x44004000),
        ("fma.rn.relu.f16x2 %r3, %r1, 0xBC00BC00, 0;", 0),
        ("max.f16x2 %r3, %r1, 0x3C004000;", 0x40004000),
        ("neg.f16x2 %r3, %r1;", 0xC000BC00),
        ("abs.bf16x2 %r3, 0xBF80BF80;", 0x3F803F80),
        ("ex2.approx.f16x2 %r3, %r1;", 0x44004000),
        ("add.f16x2 %r3, 0x7C007E00, 0xFC003C00;", 0x7FFF7FFF),
    ],
)
def test_packed_forms(run_one, text, wanted):
    assert hex(int(run_one(text, r1=0x40003C00, r2=0x3C003C00)["r3"][0])) == hex(wanted)


@pytest.mark.parametrize(
    ("test", "wanted"),
    [("finite", [1, 0, 0, 1]), ("infinite", [0, 1, 0, 0]), ("notanumber", [0, 0, 1, 0]),
     ("number", [1, 1, 0, 1]), ("normal", [1, 0, 0, 0]), ("subnormal", [0, 0, 0, 1])],
)  # fmt: skip
def test_properties(run_one, test, wanted):
    values = np.array([1, np.inf, np.nan, 1e-40] * 8, np.float32)
    found = run_one(f"testp.{test}.f32 %p1, %f1;", f1=values)["p1"]
    assert found[:4].astype(int).tolist() == wanted
