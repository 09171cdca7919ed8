"""Bits: logic, shifts, fields, permutations and counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from l2tune.runtime.emulator.operands import OperandError, elementwise, value_dtype
from l2tune.runtime.emulator.program import WARP_LANES, Immediate, Instruction, Kernel
from l2tune.runtime.emulator.warp import Lanes, Step, width_bytes

_BITS = ("pred", "b16", "b32", "b64")
_U32 = np.uint32


def _bitwise(function: Callable[..., Lanes], count: int) -> Callable[..., Step | None]:
    def build(instruction: Instruction, kernel: Kernel) -> Step | None:
        (ptx_type,) = instruction.modifiers
        if ptx_type not in _BITS:
            return None
        return elementwise(instruction, kernel, function, ptx_type, *[ptx_type] * count)

    return build


def _single(modifiers: tuple[str, ...], allowed: tuple[str, ...]) -> str:
    if len(modifiers) != 1 or modifiers[0] not in allowed:
        raise KeyError(modifiers)
    return modifiers[0]


def _shift(instruction: Instruction, kernel: Kernel) -> Step:
    """`shl` and `shr`; an amount past the width shifts everything out, as numpy does too."""
    left = instruction.opcode == "shl"
    kinds = "b" if left else "bus"
    types = tuple(kind + width for kind in kinds for width in ("16", "32", "64"))
    ptx_type = _single(instruction.modifiers, types)
    operation = np.left_shift if left else np.right_shift
    target, source, by = instruction.operands
    if isinstance(by, Immediate):
        clamped = Immediate(min(by.bits & 0xFFFFFFFF, 63 if ptx_type[0] == "s" else 64))
        fixed = dataclasses.replace(instruction, operands=(target, source, clamped))
        return elementwise(fixed, kernel, operation, ptx_type, ptx_type, ptx_type)

    def shift(a: Lanes, amount: Lanes) -> Lanes:
        return operation(a, amount if a.itemsize == 4 else np.minimum(amount, 64).astype(a.dtype))

    def shift_signed(a: Lanes, amount: Lanes) -> Lanes:
        result: Lanes = operation(a, np.minimum(amount, 63).astype(a.dtype))
        return result

    function = shift_signed if ptx_type.startswith("s") else shift
    return elementwise(instruction, kernel, function, ptx_type, ptx_type, "u32")


def _funnel(instruction: Instruction, kernel: Kernel) -> Step:
    """`shf.l` gives the high half of `b:a << c`, `shf.r` the low half of `b:a >> c`."""
    direction, mode, _ = instruction.modifiers
    clamps = {"clamp": True, "wrap": False}[mode]

    def funnel(a: Lanes, b: Lanes, amount: Lanes) -> Lanes:
        n = np.minimum(amount, _U32(32)) if clamps else amount & _U32(31)
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        if direction == "l":
            return ((both << n.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)
        return (both >> n.astype(np.uint64)).astype(np.uint32)

    return elementwise(instruction, kernel, funnel, "b32", "b32", "b32", "u32")


def _lop3(instruction: Instruction, kernel: Kernel) -> Step | None:
    if instruction.modifiers != ("b32",):
        return None
    *parts, table = instruction.operands
    if not isinstance(table, Immediate):
        raise OperandError("the table of lop3 is not a constant")
    rows = [row for row in range(8) if table.bits >> row & 1]
    flipped = len(rows) > 4
    rows = [row for row in range(8) if row not in rows] if flipped else rows

    def lookup(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        result = np.zeros_like(a)
        for row in rows:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return ~result if flipped else result

    plain = dataclasses.replace(instruction, operands=tuple(parts))
    return elementwise(plain, kernel, lookup, "b32", "b32", "b32", "b32")


def ones(count: Lanes, dtype: Any) -> Lanes:
    """Numbers whose lowest `count` bits are set, count up to the width."""
    result: Lanes = ~np.left_shift(~np.zeros(count.shape, dtype), count.astype(dtype))
    return result


def _extract_fixed(
    instruction: Instruction, kernel: Kernel, ptx_type: str, start: int, length: int
) -> Step:
    """`bfe` of a field known when the kernel is loaded: two shifts."""
    width = 8 * width_bytes(ptx_type)
    dtype: Any = value_dtype(ptx_type)
    up: Lanes = np.full(WARP_LANES, width - start - length, dtype)
    down: Lanes = np.full(WARP_LANES, width - length, dtype)
    plain = dataclasses.replace(instruction, operands=instruction.operands[:2])
    return elementwise(plain, kernel, lambda a: (a << up) >> down, ptx_type, ptx_type)


def _extract(instruction: Instruction, kernel: Kernel) -> Step:
    ptx_type = _single(instruction.modifiers, ("u32", "s32", "u64", "s64"))
    raw, width = "b" + ptx_type[1:], 8 * width_bytes(ptx_type)
    at, size = instruction.operands[2:]
    if isinstance(at, Immediate) and isinstance(size, Immediate):
        first, count = at.bits & 255, size.bits & 255
        if count and first + count <= width:
            return _extract_fixed(instruction, kernel, ptx_type, first, count)

    def extract(a: Lanes, start: Lanes, length: Lanes) -> Lanes:
        start, length = start & _U32(255), length & _U32(255)
        count = np.minimum(length, width - np.minimum(start, _U32(width)))
        field = ones(count, a.dtype)
        result: Lanes = np.right_shift(a, start.astype(a.dtype)) & field
        if ptx_type[0] == "u":
            return result
        last = np.minimum(start + np.maximum(length, _U32(1)) - _U32(1), _U32(width - 1))
        sign = (np.right_shift(a, last.astype(a.dtype)) & a.dtype.type(1)) != 0
        return np.where(sign & (length != 0), result | ~field, result)

    return elementwise(instruction, kernel, extract, raw, raw, "u32", "u32")


def _insert(instruction: Instruction, kernel: Kernel) -> Step:
    ptx_type = _single(instruction.modifiers, ("b32", "b64"))
    width = 8 * width_bytes(ptx_type)

    def insert(a: Lanes, b: Lanes, start: Lanes, length: Lanes) -> Lanes:
        at = (start & _U32(255)).astype(a.dtype)
        field = np.left_shift(ones(np.minimum(length & _U32(255), width), a.dtype), at)
        result: Lanes = (b & ~field) | (np.left_shift(a, at) & field)
        return result

    return elementwise(instruction, kernel, insert, ptx_type, ptx_type, ptx_type, "u32", "u32")


def _bit_lengths(a: Lanes) -> Lanes:
    """Bits up to the highest that is set; 0 for 0."""
    high = (a >> a.dtype.type(4 * a.itemsize)).astype(np.float64)
    low = (a & ones(np.array(4 * a.itemsize), a.dtype)).astype(np.float64)
    upper = np.where(high > 0, np.frexp(high)[1] + 4 * a.itemsize, np.frexp(low)[1])
    return upper.astype(np.uint32)


def _find(instruction: Instruction, kernel: Kernel) -> Step:
    ptx_type = _single(instruction.modifiers[-1:], ("u32", "s32", "u64", "s64"))
    raw, width = "b" + ptx_type[1:], 8 * width_bytes(ptx_type)
    as_shift = instruction.modifiers[:-1] == ("shiftamt",)

    def find(a: Lanes) -> Lanes:
        negative = (a >> a.dtype.type(width - 1)) != 0
        length = _bit_lengths(np.where(negative, ~a, a) if ptx_type[0] == "s" else a)
        place = length - _U32(1)
        return np.where(length == 0, place, _U32(width - 1) - place) if as_shift else place

    return elementwise(instruction, kernel, find, "u32", raw)


def _count(function: Callable[[Lanes], Lanes]) -> Callable[..., Step]:
    def build(instruction: Instruction, kernel: Kernel) -> Step:
        ptx_type = _single(instruction.modifiers, ("b32", "b64"))
        return elementwise(instruction, kernel, function, "u32", ptx_type)

    return build


def _reverse(instruction: Instruction, kernel: Kernel) -> Step:
    ptx_type = _single(instruction.modifiers, ("b32", "b64"))

    def reverse(a: Lanes) -> Lanes:
        every = np.unpackbits(a.view(np.uint8).reshape(-1, a.itemsize), axis=1, bitorder="little")
        return np.packbits(every[:, ::-1], axis=1, bitorder="little").view(a.dtype)[:, 0]

    return elementwise(instruction, kernel, reverse, ptx_type, ptx_type)


_PERMUTATIONS = {
    "f4e": ((3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)),
    "b4e": ((5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)),
    "rc8": ((0,) * 4, (1,) * 4, (2,) * 4, (3,) * 4),
    "ecl": ((3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)),
    "rc16": ((1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)),
}
"""Source bytes of the result, highest first, by the low 2 bits of the selector (PTX manual)."""


def _permute(instruction: Instruction, kernel: Kernel) -> Step:
    mode = instruction.modifiers[1:]
    table = np.array(_PERMUTATIONS[mode[0]])[:, ::-1] if mode else None
    lanes = np.arange(32)[:, None]
    shifts = np.array([0, 4, 8, 12], dtype=np.uint32)

    def permute(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
        pool = np.concatenate([a.view(np.uint8).reshape(-1, 4), b.view(np.uint8).reshape(-1, 4)], 1)
        if table is not None:
            picked = pool[lanes, table[selector & _U32(3)]]
        else:
            nibbles = (selector[:, None] >> shifts) & _U32(15)
            picked = pool[lanes, nibbles & _U32(7)]
            signs = np.where(picked & 0x80, np.uint8(255), np.uint8(0))
            picked = np.where(nibbles & _U32(8), signs, picked)
        return np.ascontiguousarray(picked).view(np.uint32)[:, 0]

    return elementwise(instruction, kernel, permute, "b32", "b32", "b32", "b32")


def _mask(instruction: Instruction, kernel: Kernel) -> Step:
    clamps = {"clamp": True, "wrap": False}[instruction.modifiers[0]]

    def mask(start: Lanes, length: Lanes) -> Lanes:
        if not clamps:
            start, length = start & _U32(31), length & _U32(31)
        return np.left_shift(ones(np.minimum(length, _U32(32)), np.uint32), start)

    return elementwise(instruction, kernel, mask, "b32", "u32", "u32")


def _extend(instruction: Instruction, kernel: Kernel) -> Step:
    mode, ptx_type = instruction.modifiers
    clamps = {"clamp": True, "wrap": False}[mode]

    def extend(a: Lanes, length: Lanes) -> Lanes:
        count = np.minimum(length, _U32(32)) if clamps else length & _U32(31)
        field = ones(count, np.uint32)
        low = a & field
        if ptx_type == "u32":
            return low
        top = (a >> (np.maximum(count, _U32(1)) - _U32(1))) & _U32(1)
        sign = (top != 0) & (count != 0)
        return np.where(sign, low | ~field, low)

    return elementwise(instruction, kernel, extend, "b32", "b32", "u32")


def _is_zero(a: Lanes) -> Lanes:
    result: Lanes = (a == 0).astype(a.dtype)
    return result


def _leading_zeros(a: Lanes) -> Lanes:
    return _U32(8 * a.itemsize) - _bit_lengths(a)


BUILDERS: dict[str, Callable[[Instruction, Kernel], Step | None]] = {
    "and": _bitwise(np.bitwise_and, 2),
    "or": _bitwise(np.bitwise_or, 2),
    "xor": _bitwise(np.bitwise_xor, 2),
    "not": _bitwise(np.invert, 1),
    "cnot": _bitwise(_is_zero, 1),
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel,
    "lop3": _lop3,
    "bfe": _extract,
    "bfi": _insert,
    "bfind": _find,
    "brev": _reverse,
    "clz": _count(_leading_zeros),
    "popc": _count(lambda a: np.bitwise_count(a).astype(np.uint32)),
    "prmt": _permute,
    "bmsk": _mask,
    "szext": _extend,
}
