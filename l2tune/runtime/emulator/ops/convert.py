"""Conversions: `cvt` between integers and floats of all widths, and `cvt.pack`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from l2tune.runtime.emulator.operands import OperandError, elementwise, value_dtype
from l2tune.runtime.emulator.ops.rounding import (
    ROUNDINGS,
    fit,
    flush,
    integer_to_odd,
    round_integer,
    widen,
)
from l2tune.runtime.emulator.program import Instruction, Kernel, Pair, Vector
from l2tune.runtime.emulator.warp import Lanes, Step, width_bytes

_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
_FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGER: dict[str, Callable[[Lanes], Lanes]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip
_FLAGS = (*ROUNDINGS, *_TO_INTEGER, "ftz", "sat", "relu", "satfinite")
_LARGEST = {"f16": 65504.0, "bf16": float.fromhex("0x1.fep127")}


@dataclasses.dataclass(frozen=True)
class _Conversion:
    """What the modifiers of a `cvt` say."""

    result: str
    source: str
    flags: tuple[str, ...]

    @property
    def rounding(self) -> str:
        """To a float's last bit."""
        return next((flag for flag in self.flags if flag in ROUNDINGS), "rn")

    @property
    def to_integer(self) -> Callable[[Lanes], Lanes] | None:
        """To an integral value."""
        return next((_TO_INTEGER[flag] for flag in self.flags if flag in _TO_INTEGER), None)


def _cvt(instruction: Instruction, kernel: Kernel) -> Step | None:
    *flags, result, source = instruction.modifiers
    if flags and flags[0] == "pack":
        return None
    for flag in flags:
        if flag not in _FLAGS:
            raise OperandError(f".{flag} is not known here")
    how = _Conversion(result, source, tuple(flags))
    if result in ("f16x2", "bf16x2") and source == "f32":
        return _pair(instruction, kernel, how)
    if result == "tf32" and source == "f32":
        return elementwise(instruction, kernel, _to_tf32(how), "b32", "f32")
    function = _conversion(how)
    if function is None:
        return None
    held = result if result in _INTEGERS else f"b{8 * width_bytes(result)}"
    taken = source if source in _INTEGERS else f"b{8 * width_bytes(source)}"
    return elementwise(instruction, kernel, function, held, taken)


def _conversion(how: _Conversion) -> Callable[[Lanes], Lanes] | None:
    """From values of an integer source, or bits of a float one, to the like of the result."""
    if how.result in _INTEGERS:
        if how.source in _INTEGERS:
            return _integer_to_integer(how)
        return _float_to_integer(how) if how.source in _FLOATS else None
    if how.result not in _FLOATS:
        return None
    if how.source in _INTEGERS:
        return _integer_to_float(how)
    return _float_to_float(how) if how.source in _FLOATS else None


def _limits(ptx_type: str) -> tuple[int, int]:
    bits = 8 * width_bytes(ptx_type)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if ptx_type[0] == "s" else (0, (1 << bits) - 1)


def _integer_to_integer(how: _Conversion) -> Callable[[Lanes], Lanes]:
    dtype: Any = value_dtype(how.result)
    if "sat" not in how.flags:
        return lambda a: a.astype(dtype)
    low, high = _limits(how.result)
    from_low, from_high = _limits(how.source)
    return lambda a: np.clip(a, max(low, from_low), min(high, from_high)).astype(dtype)


def _float_to_integer(how: _Conversion) -> Callable[[Lanes], Lanes]:
    """Clamped to the result's range; NaN is 0, or the top bit where 64-bit types take part."""
    to_integer = how.to_integer
    if to_integer is None:
        raise OperandError("a float becomes an integer by no named rounding")
    dtype: Any = value_dtype(how.result)
    low, high = _limits(how.result)
    wide = how.source == "f64" or how.result in ("s64", "u64")
    bits = 8 * width_bytes(how.result)
    nan = np.array((1 << bits - 1) if wide else 0, np.uint64).astype(dtype)

    def convert(bits: Lanes) -> Lanes:
        value = widen(bits, how.source)
        value = to_integer((flush(value) if "ftz" in how.flags else value).astype(np.float64))
        inside = (value >= low) & (value < high + 1)
        whole = np.where(inside, value, 0).astype(dtype)
        clamped = np.where(value > 0, dtype(high), dtype(low))
        return np.where(inside, whole, np.where(np.isnan(value), nan, clamped))

    return convert


def _integer_to_float(how: _Conversion) -> Callable[[Lanes], Lanes]:
    wide = how.source in ("u64", "s64")

    def convert(a: Lanes) -> Lanes:
        if not wide:
            value = a.astype(np.float64)
        elif how.result == "f64":
            return round_integer(a, how.rounding).view(np.uint64)
        else:
            value = integer_to_odd(a)
        return fit(_saturated(value, how), how.result, how.rounding)

    return convert


def _saturated(value: Lanes, how: _Conversion) -> Lanes:
    if "sat" in how.flags:
        return np.where(value > 0, np.minimum(value, 1), 0).astype(value.dtype)
    if "relu" in how.flags:
        value = np.where(value < 0, 0, value + 0).astype(value.dtype)
        value = np.where(value == 0, np.abs(value), value)
    if "satfinite" in how.flags:
        largest = _LARGEST[how.result.removesuffix("x2")]
        return np.where(np.isnan(value), value, np.clip(value, -largest, largest))
    return value


def _float_to_float(how: _Conversion) -> Callable[[Lanes], Lanes]:
    def convert(bits: Lanes) -> Lanes:
        value = widen(bits, how.source)
        if "ftz" in how.flags and how.source == "f32":
            value = flush(value)
        if how.to_integer:
            value = how.to_integer(value)
        result = fit(_saturated(value, how), how.result, how.rounding)
        if "ftz" in how.flags and how.result == "f32":
            return flush(result.view(np.float32)).view(np.uint32)
        return result

    return convert


def _pair(instruction: Instruction, kernel: Kernel, how: _Conversion) -> Step:
    """The first source goes to the upper half."""
    half = how.result.removesuffix("x2")

    def convert(a: Lanes, b: Lanes) -> Lanes:
        both = np.empty(2 * len(a), np.float32)
        both[0::2], both[1::2] = b, a
        if "ftz" in how.flags:
            both = flush(both)
        return fit(_saturated(both, how), half, how.rounding).view(np.uint32)

    return elementwise(instruction, kernel, convert, "b32", "f32", "f32")


def _to_tf32(how: _Conversion) -> Callable[[Lanes], Lanes]:
    """19 bits of a float32, the others zero."""

    def convert(a: Lanes) -> Lanes:
        bits = a.view(np.uint32)
        if how.rounding == "rna":
            bits = bits + np.uint32(0x1000)
        elif how.rounding == "rn":
            bits = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        bits = np.where(np.isfinite(a), bits, a.view(np.uint32)) & np.uint32(0xFFFFE000)
        return np.where(np.isnan(a), np.uint32(0x7FFFFFFF), bits)

    return convert


def _pack(instruction: Instruction, kernel: Kernel) -> Step | None:
    """`cvt.pack.sat`: two numbers clamped and joined, and `c` moved up if there is one."""
    if instruction.modifiers[:2] != ("pack", "sat"):
        return None
    result, source, *more = instruction.modifiers[2:]
    if result not in ("u8", "s8", "u16", "s16") or source != "s32":
        return None
    low, high = _limits(result)
    bits = 8 * width_bytes(result)
    part = (1 << bits) - 1

    def pack(a: Lanes, b: Lanes, c: Lanes | None = None) -> Lanes:
        upper, lower = (np.clip(v, low, high).astype(np.int64) & part for v in (a, b))
        joined = upper << bits | lower
        if c is not None:
            joined |= c.astype(np.int64) << 2 * bits
        return joined.astype(np.uint32)

    return elementwise(instruction, kernel, pack, "b32", "s32", "s32", *more)


def _any(instruction: Instruction, kernel: Kernel) -> Step | None:
    if any(isinstance(operand, Vector | Pair) for operand in instruction.operands):
        return None
    return _pack(instruction, kernel) or _cvt(instruction, kernel)


BUILDERS = {"cvt": _any}
