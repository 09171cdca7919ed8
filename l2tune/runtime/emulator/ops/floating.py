"""Float arithmetic that IEEE 754 defines, of f16, bf16, f32 and f64, single and packed.

Every result is rounded once. NaN results are the canonical NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from l2tune.runtime.emulator.operands import OperandError, elementwise
from l2tune.runtime.emulator.ops import rounding
from l2tune.runtime.emulator.ops.rounding import RAW, ROUNDINGS, canonical, fit, widen
from l2tune.runtime.emulator.program import Instruction, Kernel
from l2tune.runtime.emulator.warp import Lanes, Step, width_bytes

Function = Callable[..., Lanes]
TYPES = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")


@dataclasses.dataclass(frozen=True)
class Form:
    """What the modifiers say.

    Attributes:
        single: Type of one number: `f16` for `f16x2`.
        bits: Type of the register's bits.
        rounding: `rn` if none is given.
        flags: All other modifiers.
    """

    single: str
    bits: str
    rounding: str
    flags: frozenset[str]


def form(instruction: Instruction, allowed: tuple[str, ...]) -> Form:
    """Take the modifiers apart.

    Raises:
        KeyError: If the type is no float type.
        OperandError: At a modifier that is neither a rounding nor allowed.
    """
    *words, ptx_type = instruction.modifiers
    if ptx_type not in TYPES:
        raise KeyError(ptx_type)
    for word in words:
        if word not in ROUNDINGS and word not in allowed:
            raise OperandError(f".{word} is not known here")
    return Form(
        single=ptx_type.removesuffix("x2"),
        bits=f"b{8 * width_bytes(ptx_type)}",
        rounding=next((word for word in words if word in ROUNDINGS), "rn"),
        flags=frozenset(words) - set(ROUNDINGS),
    )


def numbers(bits: Lanes, how: Form) -> Lanes:
    """The numbers in a register, those of packed types one after the other, `.ftz` applied."""
    value = widen(bits.view(RAW[how.single]), how.single)
    return flushed(value, how) if "ftz" in how.flags else value


def flushed(value: Lanes, how: Form) -> Lanes:
    """Subnormal numbers of the type made zeros."""
    if how.single == "f16":
        return np.where(np.abs(value) < np.float32(2.0**-14), np.copysign(0, value), value)
    return rounding.flush(value) if how.single == "f32" else value


def finish(value: Lanes, how: Form) -> Lanes:
    """Round, clamp and flush a result as the modifiers say, and give its register's bits."""
    if "sat" in how.flags:
        value = np.where(value > 0, np.minimum(value, 1), 0).astype(value.dtype)
    elif "relu" in how.flags:
        value = np.where(value <= 0, 0, value).astype(value.dtype)
    bits = fit(value, how.single, how.rounding)
    if "ftz" in how.flags:
        bits = fit(flushed(widen(bits, how.single), how), how.single)
    return bits.view(f"u{width_bytes(how.bits)}")


def _wide(function: Function) -> Function:
    return lambda *sources: function(*[source.astype(np.float64) for source in sources])


def _odd_difference(a: Lanes, b: Lanes) -> Lanes:
    return rounding.odd_sum(a, -b)


_NEAREST: dict[str, Function] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_EXACT: dict[str, Function] = {
    "add": _wide(rounding.odd_sum),
    "sub": _wide(_odd_difference),
    "mul": _wide(np.multiply),
    "fma": rounding.fused,
    "mad": rounding.fused,
}
"""In float64, exact or rounded to odd, for sources of at most 24 bits."""


def _arithmetic(instruction: Instruction, kernel: Kernel) -> Step:
    """`add`, `sub`, `mul`, `fma`, `mad`."""
    how = form(instruction, ("ftz", "sat", "relu"))
    name = "fma" if instruction.opcode == "mad" else instruction.opcode
    count = 3 if name == "fma" else 2
    if how.single == "f32" and how.rounding == "rn":
        quick: Function = _NEAREST.get(name, rounding.fma_f32)
        if not how.flags:
            return elementwise(
                instruction, kernel, lambda *v: canonical(quick(*v), "f32"), "b32", *["f32"] * count
            )
        function = quick
    elif how.single == "f64":
        function = _directed_f64(name, how.rounding)
        if how.rounding == "rn":
            function = _NEAREST.get(name, rounding.fma_f64)
    else:
        function = _EXACT[name]
    if how.rounding == "rm" and name != "mul":
        function = _mirrored(function)
    return general(instruction, kernel, how, function, count)


def _mirrored(function: Function) -> Function:
    """-f(-a, ..., -c), for `rm`: a sum that is exactly zero is then -0, as it must be."""
    return lambda a, *b: -function(-a, *b[:-1], -b[-1])


def general(
    instruction: Instruction, kernel: Kernel, how: Form, function: Function, count: int
) -> Step:
    """A step by way of `numbers` and `finish`."""

    def compute(*bits: Lanes) -> Lanes:
        return finish(function(*[numbers(b, how) for b in bits]), how)

    return elementwise(instruction, kernel, compute, how.bits, *[how.bits] * count)


def _directed_f64(name: str, direction: str) -> Function:
    """The float64 operation in a direction other than to nearest."""
    if direction == "rm" and name != "mul":
        direction = "rp"  # of the mirrored function
    return lambda *sources: rounding.exact_f64(name, direction, sources)


def _divide(instruction: Instruction, kernel: Kernel) -> Step | None:
    """`div` and, with 1 above the line, `rcp`; approximate forms are rounded to nearest too."""
    how = form(instruction, ("ftz", "approx", "full"))
    if how.single not in ("f32", "f64") or (how.single == "f64" and how.rounding != "rn"):
        return None
    reciprocal = instruction.opcode == "rcp"

    def divide(a: Lanes, b: Lanes) -> Lanes:
        quotient: Lanes = a / b
        if how.rounding == "rn":
            return quotient
        back = quotient.astype(np.float64) * b
        toward = np.where(np.signbit(b), a.astype(np.float64) - back, back - a)
        return rounding.step_f32(quotient, toward, how.rounding)

    if reciprocal:
        return general(instruction, kernel, how, lambda b: divide(np.ones_like(b), b), 1)
    return general(instruction, kernel, how, divide, 2)


def _root(instruction: Instruction, kernel: Kernel) -> Step | None:
    how = form(instruction, ("ftz", "approx"))
    if how.single not in ("f32", "f64") or (how.single == "f64" and how.rounding != "rn"):
        return None

    def root(a: Lanes) -> Lanes:
        nearest: Lanes = np.sqrt(a)
        if how.rounding == "rn":
            return nearest
        excess = nearest.astype(np.float64) ** 2 - a
        return rounding.step_f32(nearest, excess, how.rounding)

    return general(instruction, kernel, how, root, 1)


def _extremum(instruction: Instruction, kernel: Kernel) -> Step:
    """NaN loses, except with `.NaN`; -0 is less than +0."""
    how = form(instruction, ("ftz", "NaN", "xorsign", "abs"))
    smaller = instruction.opcode == "min"
    by_size = "xorsign" in how.flags

    def pick(a: Lanes, b: Lanes) -> Lanes:
        flip = np.signbit(a) ^ np.signbit(b)
        if by_size:
            a, b = np.abs(a), np.abs(b)
        result = np.fmin(a, b) if smaller else np.fmax(a, b)
        zeros = (a == 0) & (b == 0)
        if zeros.any():
            negative = (np.logical_or if smaller else np.logical_and)(np.signbit(a), np.signbit(b))
            result = np.where(zeros, np.copysign(result, np.where(negative, -1.0, 1.0)), result)
        if "NaN" in how.flags:
            result = np.where(np.isnan(a) | np.isnan(b), np.nan, result)
        signed = np.where(flip, -result, result) if by_size else result
        return signed.astype(a.dtype)

    return general(instruction, kernel, how, pick, 2)


def _sign(instruction: Instruction, kernel: Kernel) -> Step:
    """`abs` and `neg` change the sign bits alone."""
    how = form(instruction, ("ftz",))
    dtype = RAW[how.single]
    top = dtype(1 << 8 * width_bytes(how.single) - 1)

    def change(bits: Lanes) -> Lanes:
        parts = bits.view(dtype)
        changed = parts & ~top if instruction.opcode == "abs" else parts ^ top
        if "ftz" in how.flags:
            changed = fit(flushed(widen(changed, how.single), how), how.single)
        result: Lanes = changed.view(bits.dtype)
        return result

    return elementwise(instruction, kernel, change, how.bits, how.bits)


def _copysign(instruction: Instruction, kernel: Kernel) -> Step:
    (ptx_type,) = instruction.modifiers
    return elementwise(
        instruction, kernel, lambda a, b: np.copysign(b, a), ptx_type, ptx_type, ptx_type
    )


def _testp(instruction: Instruction, kernel: Kernel) -> Step:
    test, ptx_type = instruction.modifiers
    smallest = {"f32": 2.0**-126, "f64": 2.0**-1022}[ptx_type]
    is_nan: Function = np.isnan
    is_finite: Function = np.isfinite
    tests: dict[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~is_nan(a),
        "notanumber": np.isnan,
        "normal": lambda a: is_finite(a) & (np.abs(a) >= smallest),
        "subnormal": lambda a: np.not_equal(a, 0) & (np.abs(a) < smallest),
    }
    return elementwise(instruction, kernel, tests[test], "pred", ptx_type)


BUILDERS: dict[str, Callable[[Instruction, Kernel], Step | None]] = {
    "add": _arithmetic,
    "sub": _arithmetic,
    "mul": _arithmetic,
    "fma": _arithmetic,
    "mad": _arithmetic,
    "div": _divide,
    "rcp": _divide,
    "sqrt": _root,
    "min": _extremum,
    "max": _extremum,
    "abs": _sign,
    "neg": _sign,
    "copysign": _copysign,
    "testp": _testp,
}
