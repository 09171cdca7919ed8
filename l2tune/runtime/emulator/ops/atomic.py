"""Atomic operations on memory: `atom` and `red`, scalar, packed and vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from l2tune.runtime.emulator.operands import address, reader, value_dtype, writer
from l2tune.runtime.emulator.ops.data import items
from l2tune.runtime.emulator.ops.rounding import RAW, canonical, fit, widen
from l2tune.runtime.emulator.program import Instruction, Kernel
from l2tune.runtime.emulator.warp import Lanes, Step, Warp, width_bytes

_SPACES = {"global": "global", "shared": "shared", "shared::cta": "shared",
           "shared::cluster": "shared::cluster"}  # fmt: skip
_SCOPES = ("cta", "cluster", "gpu", "sys")
_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")

Change = Callable[[Lanes, Lanes], Lanes]
"""From what was there and an operand, as raw bits, to what is stored."""


def _increase(old: Lanes, limit: Lanes) -> Lanes:
    return np.where(old >= limit, 0, old + 1).astype(old.dtype)


def _decrease(old: Lanes, limit: Lanes) -> Lanes:
    return np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype)


def _exchange(old: Lanes, new: Lanes) -> Lanes:
    return new


_INTEGER: dict[str, Change] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "inc": _increase, "dec": _decrease,
    "exch": _exchange,
}  # fmt: skip


def change(operation: str, ptx_type: str) -> Change:
    """An operation's function of raw bits.

    Raises:
        KeyError: If the type has no such operation.
    """
    if ptx_type not in _FLOATS or operation == "exch":
        function, dtype = _INTEGER[operation], value_dtype(ptx_type)
        return lambda old, new: function(old.view(dtype), new.view(dtype)).view(old.dtype)
    single = ptx_type.removesuffix("x2")
    raw = RAW[single]
    combine: Any = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation]

    def change_floats(old: Lanes, new: Lanes) -> Lanes:
        a, b = widen(old.view(raw), single), widen(new.view(raw), single)
        result = combine(a, b)
        bits = canonical(result, single) if single in ("f32", "f64") else fit(result, single)
        return bits.view(old.dtype)

    return change_floats


def _parse(modifiers: tuple[str, ...]) -> tuple[str, str, int, str]:
    """State space, operation, vector length and type."""
    *words, ptx_type = modifiers
    space, operation, count = "generic", "", 1
    for word in words:
        if word in _SPACES:
            space = _SPACES[word]
        elif word in ("v2", "v4", "v8"):
            count = int(word[1:])
        elif word in _INTEGER or word == "cas":
            operation = word
        elif word not in (*_SCOPES, *_ORDERS, "noftz") and not word.startswith(("L1::", "L2::")):
            raise KeyError(word)
    return space, operation, count, ptx_type


def _atomic(instruction: Instruction, kernel: Kernel) -> Step | None:
    space, operation, count, ptx_type = _parse(instruction.modifiers)
    returns = instruction.opcode == "atom"
    where = address(instruction.operands[1 if returns else 0], kernel)
    size, raw = width_bytes(ptx_type), f"b{8 * width_bytes(ptx_type)}"
    sources = instruction.operands[2 if returns else 1 :]
    reads = [reader(item, raw, kernel) for item in items(sources[0], count)]
    writes = (
        [writer(item, raw) for item in items(instruction.operands[0], count)] if returns else []
    )
    dtype: Any = RAW.get(ptx_type) or np.dtype(f"u{size}")
    swaps = reader(sources[1], raw, kernel) if operation == "cas" else None
    apply = _exchange if swaps else change(operation, ptx_type)

    def step(warp: Warp, mask: Lanes) -> None:
        at = where(warp, mask)
        for index, read in enumerate(reads):
            value = read(warp, mask)
            other = swaps(warp, mask) if swaps else value

            def new(old: Lanes, lane: int, value: Lanes = value, other: Lanes = other) -> Lanes:
                was, mine = old.reshape(-1).view(dtype), value[lane : lane + 1]
                if swaps:
                    stored = other[lane : lane + 1] if was[0] == mine[0] else was
                else:
                    stored = apply(was, mine)
                return stored.view(np.uint8).reshape(1, -1)

            place = at + np.uint64(index * size) if index else at
            old = warp.block.machine.memory.atomic(warp, mask, space, place, size, new)
            if returns:
                writes[index](warp, np.ascontiguousarray(old).view(dtype).reshape(-1), mask)

    return step


def _red(instruction: Instruction, kernel: Kernel) -> Step | None:
    return None if "async" in instruction.modifiers else _atomic(instruction, kernel)


BUILDERS: dict[str, Callable[[Instruction, Kernel], Step | None]] = {
    "atom": _atomic,
    "red": _red,
}
