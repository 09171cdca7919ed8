"""Comparisons and choices: `setp`, `set`, `selp`, `slct`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from l2tune.runtime.emulator.operands import (
    OperandError,
    Reader,
    constant,
    elementwise,
    reader,
    value_dtype,
    values,
    writer,
)
from l2tune.runtime.emulator.ops.rounding import flush, widen
from l2tune.runtime.emulator.program import Instruction, Kernel, Operand, Pair
from l2tune.runtime.emulator.warp import Lanes, Step, Warp

Compare = Callable[[Lanes, Lanes], Lanes]

_ORDERED: dict[str, Compare] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_BOOLEAN: dict[str, Compare] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
}  # fmt: skip
_FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")


def _is_number(a: Lanes, b: Lanes) -> Lanes:
    return ~(np.isnan(a) | np.isnan(b))


def _comparison(name: str, ptx_type: str) -> Compare:
    """A comparison by name; `ne` of floats is false for NaN, `equ`, `ltu`, ... are true."""
    if ptx_type not in _FLOATS:
        return np.not_equal if name == "ne" else _ORDERED[name]
    if name == "ne":
        return lambda a, b: (a != b) & _is_number(a, b)
    if name == "num":
        return _is_number
    if name == "nan":
        return lambda a, b: ~_is_number(a, b)
    if name == "neu":
        return np.not_equal
    if len(name) == 3 and name.endswith("u"):
        ordered = _ORDERED[name[:2]]
        return lambda a, b: ordered(a, b) | ~_is_number(a, b)
    return _ORDERED[name]


def _numbers(operand: Operand, ptx_type: str, kernel: Kernel, *, flushes: bool) -> Reader:
    """Values to compare: of `f16x2` and `bf16x2` both, as [32, 2]."""
    single = ptx_type.removesuffix("x2")
    if single not in ("f16", "bf16"):
        read = values(operand, ptx_type, kernel)
        return (lambda warp, mask: flush(read(warp, mask))) if flushes else read
    read_bits = reader(operand, "b32" if ptx_type != single else "b16", kernel)
    shape = (32,) if ptx_type == single else (32, 2)

    def read_halves(warp: Warp, mask: Lanes) -> Lanes:
        return widen(read_bits(warp, mask).view(np.uint16), single).reshape(shape)

    return read_halves


def _compared(
    instruction: Instruction, kernel: Kernel, modifiers: tuple[str, ...], ptx_type: str
) -> tuple[Reader, Compare, Reader]:
    """What a comparison finds, how its predicate operand joins, and that predicate."""
    name, *rest = modifiers
    flushes = "ftz" in rest
    if flushes and ptx_type not in ("f16", "f32", "f16x2"):
        raise KeyError("ftz")
    compare = _comparison(name, ptx_type)
    _, a, b, *more = instruction.operands
    first = _numbers(a, ptx_type, kernel, flushes=flushes)
    second = _numbers(b, ptx_type, kernel, flushes=flushes)
    boolean = [r for r in rest if r != "ftz"]
    if len(boolean) != len(more):
        raise OperandError("it has too few or too many operands")
    if not boolean:
        always = constant(1, "pred")
        joined: Compare = np.logical_and
        predicate: Reader = lambda warp, mask: always  # noqa: E731
    else:
        joined, predicate = _BOOLEAN[boolean[0]], reader(more[0], "pred", kernel)
    return (lambda warp, mask: compare(first(warp, mask), second(warp, mask))), joined, predicate


def _setp(instruction: Instruction, kernel: Kernel) -> Step:
    *modifiers, ptx_type = instruction.modifiers
    found, join, predicate = _compared(instruction, kernel, tuple(modifiers), ptx_type)
    target = instruction.operands[0]
    if len(modifiers) == 1 and not isinstance(target, Pair):
        write = writer(target, "pred")
        return lambda warp, mask: write(warp, found(warp, mask), mask)
    pair = target if isinstance(target, Pair) else Pair(target, None)
    first, second = writer(pair.first, "pred"), writer(pair.second, "pred")
    packed = ptx_type.endswith("x2")

    def step(warp: Warp, mask: Lanes) -> None:
        result, other = found(warp, mask), predicate(warp, mask)
        if packed:
            first(warp, join(result[:, 0], other), mask)
            second(warp, join(result[:, 1], other), mask)
        else:
            first(warp, join(result, other), mask)
            second(warp, join(~result, other), mask)

    return step


_TRUE = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80,
         "u16": 0xFFFF, "s16": 0xFFFF}  # fmt: skip


def _set(instruction: Instruction, kernel: Kernel) -> Step:
    """`set`: all ones or zero, or 1.0 and 0.0, and so for each half of a packed result."""
    *modifiers, result, ptx_type = instruction.modifiers
    found, join, predicate = _compared(instruction, kernel, tuple(modifiers), ptx_type)
    if ptx_type.endswith("x2"):
        half = result.removesuffix("x2") if result.endswith("x2") else "u16"
        true, held = np.uint16(_TRUE[half]), "b32"
    else:
        held = "b" + "".join(c for c in result.replace("bf", "") if c.isdigit())
        true = value_dtype(held)(_TRUE[result])
    write = writer(instruction.operands[0], held)

    def step(warp: Warp, mask: Lanes) -> None:
        answer, other = found(warp, mask), predicate(warp, mask)
        joined = join(answer, other if answer.ndim == 1 else other[:, None])
        bits = np.where(joined, true, true ^ true)
        write(warp, bits if answer.ndim == 1 else bits.view(np.uint32)[:, 0], mask)

    return step


def _selp(instruction: Instruction, kernel: Kernel) -> Step:
    (ptx_type,) = instruction.modifiers
    raw: Any = "b" + ptx_type[1:] if ptx_type[0] in "us" else ptx_type

    def select(a: Lanes, b: Lanes, predicate: Lanes) -> Lanes:
        return np.where(predicate, a, b)

    return elementwise(instruction, kernel, select, raw, raw, raw, "pred")


def _slct(instruction: Instruction, kernel: Kernel) -> Step:
    *flushes, ptx_type, selector = instruction.modifiers

    def select(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        return np.where((flush(c) if flushes else c) >= 0, a, b)

    return elementwise(instruction, kernel, select, ptx_type, ptx_type, ptx_type, selector)


BUILDERS = {"setp": _setp, "set": _set, "selp": _selp, "slct": _slct}
