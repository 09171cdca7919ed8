"""Rounding to PTX's float types, exactly once, in every direction.

numpy has no bf16, no fused multiply-add and no rounding but to nearest, so a result is computed in
float64 *rounded to odd* (the last bit says whether anything was lost), from which one more rounding
to at most 51 bits is exact in effect: Boldo and Melquiond, *Emulation of a FMA and correctly
rounded sums: proved algorithms using rounding to odd*, IEEE Trans. Computers 57 (2008).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from l2tune.runtime.emulator.warp import Lanes

CANONICAL_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0xFFF8000000000000}
"""What arithmetic gives for any NaN."""

RAW: dict[str, Any] = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}
_FLOAT: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")
_LAST_28_BITS = np.full(32, 0x0FFFFFFF, dtype=np.uint64)
_ZEROS: dict[int, Lanes] = {4: np.zeros(32, np.float32), 8: np.zeros(32, np.float64)}


def widen(bits: Lanes, ptx_type: str) -> Lanes:
    """Raw bits as numbers: f16, bf16 and f32 as float32, f64 as float64; always exact."""
    if ptx_type == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if ptx_type == "f16":
        return bits.view(np.float16).astype(np.float32)
    return bits.view(_FLOAT[ptx_type])


def canonical(value: Lanes, ptx_type: str) -> Lanes:
    """Raw bits of float32 or float64 numbers, every NaN made the canonical one."""
    return _with_canonical_nan(value.view(RAW[ptx_type]), value, ptx_type)


def _with_canonical_nan(bits: Lanes, value: Lanes, ptx_type: str) -> Lanes:
    """Where `value` is NaN, the canonical one instead of `bits`."""
    zeros = _ZEROS[value.itemsize]
    if value.shape == zeros.shape:
        probe = value.dot(zeros)  # NaN if any lane is NaN or infinite; the cheapest test there is
        if probe == probe:
            return bits
    wrong = np.isnan(value)
    return np.where(wrong, bits.dtype.type(CANONICAL_NAN[ptx_type]), bits) if wrong.any() else bits


def flush(value: Lanes) -> Lanes:
    """`.ftz`: subnormal float32 numbers become zeros of their sign."""
    tiny = np.abs(value) < np.float32(2.0**-126)
    return np.where(tiny, np.copysign(np.float32(0), value), value) if tiny.any() else value


def odd_sum(a: Lanes, b: Lanes) -> Lanes:
    """float64 a + b rounded to odd; overflow must be impossible.

    Source:
        Knuth's two-sum gives the error of the sum exactly (TAOCP 2, 4.2.2, theorem B).
    """
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    return _to_odd(total, error)


def _to_odd(total: Lanes, error: Lanes) -> Lanes:
    if not np.count_nonzero(error):
        return total
    bits = total.view(np.int64)
    lost = (error != 0) & np.isfinite(total) & np.isfinite(error) & ((bits & 1) == 0)
    if not lost.any():
        return total
    away = np.signbit(total) == np.signbit(error)
    step = np.where(lost, np.where(away, 1, -1), 0)
    return (bits + step).view(np.float64)


def _halves(value: Lanes) -> tuple[Lanes, Lanes]:
    """Two float64 numbers whose exact sum is a 64-bit integer."""
    low = value & value.dtype.type(0xFFFFFFFF)
    return (value - low).astype(np.float64), low.astype(np.float64)


def integer_to_odd(value: Lanes) -> Lanes:
    """A 64-bit integer rounded to odd in float64."""
    return odd_sum(*_halves(value))


def round_integer(value: Lanes, rounding: str) -> Lanes:
    """A 64-bit integer as float64, in any direction."""
    high, low = _halves(value)
    total = high + low
    if rounding == "rn":
        return total
    part = total - high
    error = (high - (total - part)) + (low - part)
    if rounding == "rz":
        wrong, to = (error != 0) & ((error < 0) == (total > 0)), np.zeros_like(total)
    elif rounding == "rm":
        wrong, to = error < 0, np.full_like(total, -np.inf)
    else:
        wrong, to = error > 0, np.full_like(total, np.inf)
    return np.where(wrong, np.nextafter(total, to), total)


def fused(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """The float64 a * b + c rounded to odd, for values of at most 24 bits (f16, bf16, f32)."""
    return odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))


def fma_f32(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """float32 a * b + c, rounded once, to nearest."""
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    # Rounding twice errs only if the float64 sum lies half-way between float32 numbers: then its
    # last 28 bits are zeros, for subnormal results too.
    if np.count_nonzero(total.view(np.uint64) & _LAST_28_BITS) != total.size:
        total = odd_sum(product, c.astype(np.float64))
    return total.astype(np.float32)


def fma_f64(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """float64 a * b + c, rounded once, to nearest."""
    return exact_f64("fma", "rn", (a, b, c))


def exact_f64(name: str, rounding: str, sources: tuple[Lanes, ...]) -> Lanes:
    """float64 `add`, `sub`, `mul` or `fma` in any direction: lane by lane, with fractions."""
    formula = FORMULAS[name]
    result: Lanes = formula(*sources)
    finite = np.logical_and.reduce([np.isfinite(source) for source in sources])
    for lane in np.flatnonzero(finite):
        exact = formula(*[Fraction(float(source[lane])) for source in sources])
        if exact:
            result[lane] = _round_fraction(exact, rounding)
    return result


FORMULAS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
}


def _round_fraction(exact: Fraction, rounding: str) -> float:
    try:
        nearest = float(exact)
    except OverflowError:
        nearest = np.inf if exact > 0 else -np.inf
    over = nearest == np.inf or (nearest != -np.inf and Fraction(nearest) > exact)
    under = nearest == -np.inf or (nearest != np.inf and Fraction(nearest) < exact)
    down = rounding == "rm" or (rounding == "rz" and exact > 0)
    if rounding != "rn" and down and over:
        return float(np.nextafter(nearest, -np.inf))
    if rounding != "rn" and not down and under:
        return float(np.nextafter(nearest, np.inf))
    return nearest


def step_f32(nearest: Lanes, excess: Lanes, rounding: str) -> Lanes:
    """Correct a float32 result rounded to nearest for another direction.

    Args:
        nearest: The result.
        excess: float64 of the sign of `nearest` minus the exact result.
        rounding: `rz`, `rm` or `rp`.
    """
    down = nearest > 0 if rounding == "rz" else np.full(nearest.shape, rounding == "rm")
    lower = np.nextafter(nearest, np.float32(-np.inf))
    upper = np.nextafter(nearest, np.float32(np.inf))
    stepped = np.where(down & (excess > 0), lower, np.where(~down & (excess < 0), upper, nearest))
    return np.copysign(stepped, nearest)


def fit(value: Lanes, ptx_type: str, rounding: str = "rn") -> Lanes:
    """Raw bits of a float type that hold float32 or float64 numbers, rounded once.

    Args:
        value: Numbers, exact or rounded to odd in float64.
        ptx_type: `f16`, `bf16`, `f32` or `f64`.
        rounding: `rn` nearest even, `rz` to zero, `rm` down, `rp` up, `rna` nearest, ties away.

    Returns:
        Raw bits; NaN is the canonical one.
    """
    if ptx_type == "bf16":
        bits = _fit_bf16(value.astype(np.float64), rounding)
    elif rounding == "rn" or np.dtype(_FLOAT[ptx_type]) == value.dtype:
        bits = value.astype(_FLOAT[ptx_type]).view(RAW[ptx_type])
    else:
        bits = _directed(value.astype(np.float64), ptx_type, rounding)
    return _with_canonical_nan(bits, value, ptx_type)


def _directed(value: Lanes, ptx_type: str, rounding: str) -> Lanes:
    dtype = _FLOAT[ptx_type]
    nearest = value.astype(dtype)
    back = nearest.astype(np.float64)
    if rounding == "rz":
        wrong, to = np.abs(back) > np.abs(value), dtype(0)
    elif rounding == "rm":
        wrong, to = back > value, dtype(-np.inf)
    else:
        wrong, to = back < value, dtype(np.inf)
    stepped = np.where(wrong, np.nextafter(nearest, to), nearest)
    signed: Lanes = np.copysign(stepped, value.astype(dtype))
    return signed.view(RAW[ptx_type])


def _fit_bf16(value: Lanes, rounding: str) -> Lanes:
    """By way of float32 rounded to odd, of which bf16 is the upper half."""
    toward_zero = _directed(value, "f32", "rz")
    lost = toward_zero.view(np.float32).astype(np.float64) != value
    bits = toward_zero | lost.astype(np.uint32)
    if rounding == "rn":
        bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    elif rounding == "rna":
        bits = bits + np.uint32(0x8000)
    elif rounding in ("rm", "rp"):
        grows = np.signbit(value) if rounding == "rm" else ~np.signbit(value)
        bits = np.where(grows & np.isfinite(value), bits + np.uint32(0xFFFF), bits)
    upper: Lanes = (bits >> np.uint32(16)).astype(np.uint16)
    return upper
