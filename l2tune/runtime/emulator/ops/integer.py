"""Integer arithmetic: sums, products, quotients, extrema, carries and dot products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from l2tune.runtime.emulator.operands import constant, elementwise, reader, value_dtype, writer
from l2tune.runtime.emulator.program import Instruction, Kernel
from l2tune.runtime.emulator.warp import Lanes, Step, Warp, width_bytes

_TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")
_MODES = ("lo", "hi", "wide")


def _type(instruction: Instruction) -> str:
    ptx_type = instruction.modifiers[-1]
    if ptx_type not in _TYPES:
        raise KeyError(ptx_type)
    return ptx_type


def _unsigned(ptx_type: str) -> str:
    return "u" + ptx_type[1:]


def _wide(ptx_type: str) -> str:
    return f"{ptx_type[0]}{16 * width_bytes(ptx_type)}"


def _wrapping(function: Callable[..., Lanes], count: int) -> Callable[..., Step | None]:
    """A builder of an operation that is the same for both signs."""

    def build(instruction: Instruction, kernel: Kernel) -> Step | None:
        if len(instruction.modifiers) != 1:
            return None
        ptx_type = _unsigned(_type(instruction))
        return elementwise(instruction, kernel, function, ptx_type, *[ptx_type] * count)

    return build


def _valued(functions: dict[str, Callable[..., Lanes]], count: int) -> Callable[..., Step | None]:
    """A builder of an operation by the type's sign (`u`, `s`)."""

    def build(instruction: Instruction, kernel: Kernel) -> Step | None:
        (name,) = instruction.modifiers if len(instruction.modifiers) == 1 else ("",)
        if name in ("u16x2", "s16x2"):
            return _packed(instruction, kernel, functions[name[0]])
        ptx_type = _type(instruction)
        if not name:
            return None
        return elementwise(
            instruction, kernel, functions[ptx_type[0]], ptx_type, *[ptx_type] * count
        )

    return build


def _packed(instruction: Instruction, kernel: Kernel, function: Callable[..., Lanes]) -> Step:
    """Two 16-bit numbers a register."""
    half: Any = value_dtype(instruction.modifiers[-1].removesuffix("x2"))

    def both(a: Lanes, b: Lanes) -> Lanes:
        return function(a.view(half), b.view(half)).view(np.uint32)

    return elementwise(instruction, kernel, both, "b32", "b32", "b32")


def _saturated(instruction: Instruction, kernel: Kernel, function: Callable[..., Lanes]) -> Step:
    """`.sat.s32`: the exact result of 64 bits, clamped to 32."""

    def clamp(*sources: Lanes) -> Lanes:
        exact = function(*[source.astype(np.int64) for source in sources])
        return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)

    count = len(instruction.operands) - 1
    return elementwise(instruction, kernel, clamp, "s32", *["s32"] * count)


def _sum(function: Callable[..., Lanes]) -> Callable[..., Step | None]:
    def build(instruction: Instruction, kernel: Kernel) -> Step | None:
        modifiers = instruction.modifiers
        if modifiers == ("sat", "s32"):
            return _saturated(instruction, kernel, function)
        if modifiers[0] == "cc":
            return _carried(instruction, kernel)
        if modifiers[0].endswith("x2"):
            return _packed(instruction, kernel, function)
        return _wrapping(function, 2)(instruction, kernel)

    return build


def _carried(instruction: Instruction, kernel: Kernel) -> Step:
    """`add`, `sub` and `mad` with the carry flag read (`addc`), written (`.cc`) or both."""
    ptx_type, opcode = _unsigned(_type(instruction)), instruction.opcode
    writes, takes = "cc" in instruction.modifiers, opcode.endswith("c")
    write = writer(instruction.operands[0], ptx_type)
    reads = [reader(operand, ptx_type, kernel) for operand in instruction.operands[1:]]
    multiply = product(instruction.modifiers[0], ptx_type) if opcode.startswith("mad") else None
    if multiply and _type(instruction)[0] == "s":
        multiply = _signed_raw(instruction.modifiers[0], _type(instruction))
    flip = constant(-1 if opcode.startswith("sub") else 0, ptx_type)

    def step(warp: Warp, mask: Lanes) -> None:
        sources = [read(warp, mask) for read in reads]
        a, b = sources if multiply is None else (multiply(sources[0], sources[1]), sources[2])
        # a - b is a + ~b + 1; the flag holds the borrow.
        subtracts = bool(flip[0])
        flag = warp.carry if takes else np.zeros_like(warp.carry)
        extra = (flag ^ subtracts).astype(a.dtype)
        partial = a + (b ^ flip)
        total = partial + extra
        if writes:
            over = (partial < a) | (total < partial)
            warp.carry = np.where(mask, over ^ subtracts, warp.carry)
        write(warp, total, mask)

    return step


def _signed_raw(mode: str, ptx_type: str) -> Callable[[Lanes, Lanes], Lanes]:
    multiply, signed = product(mode, ptx_type), value_dtype(ptx_type)
    unsigned: Any = value_dtype(_unsigned(ptx_type))
    return lambda a, b: multiply(a.view(signed), b.view(signed)).view(unsigned)


def product(mode: str, ptx_type: str) -> Callable[[Lanes, Lanes], Lanes]:
    """The low half, the high half or the whole of a product, on values of `ptx_type`."""
    if mode == "lo":
        return np.multiply
    if mode == "hi" and ptx_type == "u64":
        return _high_u64
    if mode == "hi" and ptx_type == "s64":
        return _high_s64
    dtype: Any = value_dtype(ptx_type)
    wide: Any = value_dtype(_wide(ptx_type))
    if mode == "wide":
        return lambda a, b: np.multiply(a, b, dtype=wide)
    shift = wide(8 * width_bytes(ptx_type))
    return lambda a, b: (np.multiply(a, b, dtype=wide) >> shift).astype(dtype)


def _high_u64(a: Lanes, b: Lanes) -> Lanes:
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    high: Lanes = a1 * b1 + (middle >> half) + (other >> half)
    return high


def _high_s64(a: Lanes, b: Lanes) -> Lanes:
    ua, ub = a.view(np.uint64), b.view(np.uint64)
    high = _high_u64(ua, ub) - np.where(a < 0, ub, 0) - np.where(b < 0, ua, 0)
    return high.astype(np.uint64).view(np.int64)


def _mul(instruction: Instruction, kernel: Kernel) -> Step | None:
    (mode, ptx_type) = (instruction.modifiers[0], _type(instruction))
    if mode not in _MODES or len(instruction.modifiers) != 2:
        return None
    ptx_type = _unsigned(ptx_type) if mode == "lo" else ptx_type
    result = _wide(ptx_type) if mode == "wide" else ptx_type
    return elementwise(instruction, kernel, product(mode, ptx_type), result, ptx_type, ptx_type)


def _mad(instruction: Instruction, kernel: Kernel) -> Step | None:
    mode, ptx_type = instruction.modifiers[0], _type(instruction)
    if mode not in _MODES:
        return None
    if instruction.modifiers[1] == "cc" or instruction.opcode == "madc":
        return _carried(instruction, kernel)
    ptx_type = _unsigned(ptx_type) if mode == "lo" else ptx_type
    result = _wide(ptx_type) if mode == "wide" else ptx_type
    multiply = product(mode, ptx_type)
    if "sat" in instruction.modifiers:

        def clamp(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
            total = multiply(a, b).astype(np.int64) + c
            return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)

        return elementwise(instruction, kernel, clamp, "s32", "s32", "s32", "s32")
    return elementwise(
        instruction, kernel, lambda a, b, c: multiply(a, b) + c, result, ptx_type, ptx_type, result
    )


def _magnitude(a: Lanes) -> Lanes:
    unsigned: Any = np.dtype(f"u{a.dtype.itemsize}")
    return np.abs(a).view(unsigned)


def _divide_unsigned(a: Lanes, b: Lanes) -> Lanes:
    """By zero: all ones, as the hardware's routine gives."""
    return np.where(b == 0, ~np.zeros_like(a), a // np.maximum(b, b.dtype.type(1)))


def _divide_signed(a: Lanes, b: Lanes) -> Lanes:
    quotient = _divide_unsigned(_magnitude(a), _magnitude(b))
    return np.where(((a ^ b) < 0) & (b != 0), -quotient, quotient).view(a.dtype)


def _remainder_unsigned(a: Lanes, b: Lanes) -> Lanes:
    return np.where(b == 0, a, a % np.maximum(b, b.dtype.type(1)))


def _remainder_signed(a: Lanes, b: Lanes) -> Lanes:
    rest = _remainder_unsigned(_magnitude(a), _magnitude(b))
    return np.where(a < 0, -rest, rest).view(a.dtype)


def _absolute_difference(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    unsigned: Any = np.dtype(f"u{a.dtype.itemsize}")
    a_bits, b_bits = a.view(unsigned), b.view(unsigned)
    total: Lanes = c.view(unsigned) + np.where(a > b, a_bits - b_bits, b_bits - a_bits)
    return total.view(a.dtype)


def _extremum(function: Callable[..., Lanes]) -> Callable[..., Step | None]:
    def relu(a: Lanes, b: Lanes) -> Lanes:
        return np.maximum(function(a, b), 0)

    def build(instruction: Instruction, kernel: Kernel) -> Step | None:
        if instruction.modifiers == ("relu", "s32"):
            return elementwise(instruction, kernel, relu, "s32", "s32", "s32")
        if instruction.modifiers == ("relu", "s16x2"):
            return _packed(instruction, kernel, relu)
        return _valued({"u": function, "s": function}, 2)(instruction, kernel)

    return build


def _product24(instruction: Instruction, kernel: Kernel) -> Step:
    """`mul24` and `mad24`: 24-bit factors, the low or the high 32 of 48 bits."""
    mode, ptx_type = instruction.modifiers[0], _type(instruction)
    shift = {"lo": 0, "hi": 16}[mode]
    value: Any = value_dtype(ptx_type)
    up = value(8)

    def multiply(a: Lanes, b: Lanes, c: Lanes | None = None) -> Lanes:
        exact = ((a << up) >> up).astype(np.int64) * ((b << up) >> up).astype(np.int64)
        low = (exact >> shift).astype(value)
        total: Lanes = low if c is None else low + c
        return total

    count = len(instruction.operands) - 1
    return elementwise(instruction, kernel, multiply, ptx_type, *[ptx_type] * count)


def _dot(instruction: Instruction, kernel: Kernel) -> Step:
    """`dp4a` and `dp2a`: products of bytes, summed onto 32 bits."""
    *half, a_type, b_type = instruction.modifiers
    parts = {"u32": np.uint8, "s32": np.int8}
    a_part, b_part = parts[a_type], parts[b_type]
    a_two = np.uint16 if a_type == "u32" else np.int16
    start = 2 if half == ["hi"] else 0

    def dot(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        b_bytes = b.view(b_part).reshape(-1, 4).astype(np.int64)
        if instruction.opcode == "dp4a":
            a_all = a.view(a_part).reshape(-1, 4).astype(np.int64)
        else:
            a_all = a.view(a_two).reshape(-1, 2).astype(np.int64)
            b_bytes = b_bytes[:, start : start + 2]
        total: Lanes = c + (a_all * b_bytes).sum(axis=1).astype(np.uint32)
        return total

    return elementwise(instruction, kernel, dot, "u32", "u32", "u32", "u32")


BUILDERS = {
    "add": _sum(np.add),
    "sub": _sum(np.subtract),
    "addc": _carried,
    "subc": _carried,
    "mul": _mul,
    "mad": _mad,
    "madc": _mad,
    "mul24": _product24,
    "mad24": _product24,
    "div": _valued({"u": _divide_unsigned, "s": _divide_signed}, 2),
    "rem": _valued({"u": _remainder_unsigned, "s": _remainder_signed}, 2),
    "abs": _valued({"s": np.abs}, 1),
    "neg": _wrapping(np.negative, 1),
    "min": _extremum(np.minimum),
    "max": _extremum(np.maximum),
    "sad": _valued({"u": _absolute_difference, "s": _absolute_difference}, 3),
    "dp4a": _dot,
    "dp2a": _dot,
}
