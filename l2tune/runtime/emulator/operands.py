"""How instructions read and write their operands.

Each function looks at an operand once, when a kernel is loaded, and returns what to call for each
warp. `reader` and `writer` deal in raw bits, `values` in numpy numbers of the PTX type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from l2tune.runtime.emulator.operand_syntax import SINK
from l2tune.runtime.emulator.program import (
    WARP_LANES,
    Address,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Operand,
    Register,
    Special,
    Symbol,
    Variable,
)
from l2tune.runtime.emulator.warp import FULL, Lanes, Step, Warp, register_dtype, width_bytes

Reader = Callable[[Warp, Lanes], Lanes]
Writer = Callable[[Warp, Lanes, Lanes], None]

_VALUES = {
    "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip


class OperandError(ValueError):
    """An operand that the instruction cannot have, as far as the emulator knows."""


def value_dtype(ptx_type: str) -> type:
    """The numpy type of a PTX type's values; types that numpy lacks (bf16, ...) stay raw bits."""
    return _VALUES.get(ptx_type) or raw_dtype(ptx_type)


def raw_dtype(ptx_type: str) -> type:
    """`register_dtype`, with an OperandError for a type that no register can hold."""
    try:
        return register_dtype(ptx_type)
    except (KeyError, ValueError) as error:
        raise OperandError(f"type {ptx_type!r} is not known here") from error


def constant(value: int, ptx_type: str) -> Lanes:
    """32 lanes of raw bits that hold an integer, wrapped to the type."""
    dtype = raw_dtype(ptx_type)
    if dtype is bool:
        lanes = np.full(WARP_LANES, bool(value))
    else:
        lanes = np.full(WARP_LANES, value & ((1 << 8 * width_bytes(ptx_type)) - 1), dtype=dtype)
    lanes.setflags(write=False)
    return lanes


def _immediate(operand: Immediate, ptx_type: str) -> Lanes:
    bits, width = operand.bits, 8 * width_bytes(ptx_type)
    if operand.is_float and width != operand.width:
        if ptx_type not in ("f32", "f64"):
            raise OperandError(f"a float constant of {operand.width} bits stands for a {ptx_type}")
        source, target = ("<d", "<f") if operand.width == 64 else ("<f", "<d")
        value = struct.unpack(source, bits.to_bytes(operand.width // 8, "little"))[0]
        bits = int.from_bytes(struct.pack(target, value), "little")
    elif not operand.is_float and ptx_type in ("f32", "f64"):
        packed = struct.pack("<f" if ptx_type == "f32" else "<d", float(bits))
        bits = int.from_bytes(packed, "little")
    return constant(bits, ptx_type)


def reader(operand: Operand | None, ptx_type: str, kernel: Kernel) -> Reader:
    """How to read a scalar operand as raw bits of `ptx_type`; all 32 lanes, not to be changed.

    A wider register gives its low bits.

    Raises:
        OperandError: If it is no scalar, or a register too narrow.
    """
    dtype = raw_dtype(ptx_type)
    if isinstance(operand, Register):
        return _register_reader(operand, dtype)
    if isinstance(operand, Negated):
        read_plain = _register_reader(operand.register, dtype)
        return lambda warp, mask: ~read_plain(warp, mask)
    if isinstance(operand, Immediate):
        lanes = _immediate(operand, ptx_type)
        return lambda warp, mask: lanes
    if isinstance(operand, Special) and operand is not SINK:
        name = operand.name

        def read_special(warp: Warp, mask: Lanes) -> Lanes:
            return warp.block.machine.special(name, warp).astype(dtype)

        return read_special
    if isinstance(operand, Symbol):
        if any(operand.name == v.name and v.space == "param" for v in _in_frames(kernel)):
            raise OperandError(f"the address of {operand.name}, a parameter of a function")
        read_symbol = _symbol(operand, 0, kernel)
        return lambda warp, mask: read_symbol(warp, mask).astype(dtype)
    raise OperandError(f"{operand} is not a value")


def _register_reader(register: Register, dtype: type) -> Reader:
    slot, held = register.slot, raw_dtype(register.type)

    def read(warp: Warp, mask: Lanes) -> Lanes:
        value = warp.registers[slot]
        if value is not None and warp.defined[slot] is FULL and not warp.in_flight:
            return value
        return warp.read(register, mask)

    if held is dtype:
        return read
    if bool in (held, dtype) or np.dtype(held).itemsize < np.dtype(dtype).itemsize:
        raise OperandError(f"{register.name} is a {register.type}, too narrow or of another kind")
    return lambda warp, mask: read(warp, mask).astype(dtype)


def _symbol(symbol: Symbol, offset: int, kernel: Kernel) -> Reader:
    """A variable's address in its own state space."""
    name, more = symbol.name, symbol.offset + offset
    in_frame = any(name == v.name for v in _in_frames(kernel))
    cache: dict[int, Lanes] = {}

    def read(warp: Warp, mask: Lanes) -> Lanes:
        start = warp.block.machine.symbol_address(name, "", warp.block)
        lanes = cache.get(start)
        if lanes is None:
            lanes = cache[start] = constant(start + more, "u64")
        return lanes + warp.frame if in_frame else lanes

    return read


def _in_frames(kernel: Kernel) -> Iterator[Variable]:
    """Variables that lie in the frame of a call."""
    for function in kernel.functions.values():
        yield from function.in_frame


def values(operand: Operand | None, ptx_type: str, kernel: Kernel) -> Reader:
    """Like `reader`, as numpy numbers of the type (`value_dtype`)."""
    read, dtype = reader(operand, ptx_type, kernel), value_dtype(ptx_type)
    if dtype is raw_dtype(ptx_type):
        return read
    return lambda warp, mask: read(warp, mask).view(dtype)


def writer(operand: Operand | None, ptx_type: str) -> Writer:
    """How to write raw bits of `ptx_type` to a register; a wider one is extended by the sign.

    None and `_` swallow the value.

    Raises:
        OperandError: If it is no register, or one too narrow.
    """
    if operand is None or operand is SINK:
        return lambda warp, value, mask: None
    if not isinstance(operand, Register):
        raise OperandError(f"{operand} is not a register to write to")
    register, slot = operand, operand.slot
    dtype, held = raw_dtype(ptx_type), raw_dtype(register.type)

    def write(warp: Warp, value: Lanes, mask: Lanes) -> None:
        if mask is FULL and not warp.in_flight:
            warp.registers[slot], warp.defined[slot] = value, FULL
        else:
            warp.write(register, value, mask)

    if held is dtype:
        return write
    if bool in (held, dtype) or np.dtype(held).itemsize < np.dtype(dtype).itemsize:
        raise OperandError(f"{register.name} is a {register.type}, too narrow or of another kind")
    if not ptx_type.startswith("s"):
        return lambda warp, value, mask: write(warp, value.astype(held), mask)
    signed = value_dtype(ptx_type)
    return lambda warp, value, mask: write(warp, value.view(signed).astype(held), mask)


def address(operand: Operand, kernel: Kernel) -> Reader:
    """How to read the address in brackets, uint64; 32-bit registers are extended with zeros."""
    if not isinstance(operand, Address):
        raise OperandError(f"{operand} is not an address in brackets")
    base, offset = operand.base, operand.offset
    if isinstance(base, Symbol):
        return _symbol(base, offset, kernel)
    if isinstance(base, Immediate):
        lanes = constant(base.bits + offset, "u64")
        return lambda warp, mask: lanes
    width = width_bytes(base.type)
    read, more = reader(base, f"u{8 * width}", kernel), constant(offset, f"u{8 * width}")
    if width == 8:
        return (lambda warp, mask: read(warp, mask) + more) if offset else read
    return lambda warp, mask: (read(warp, mask) + more).astype(np.uint64)


def elementwise(
    instruction: Instruction,
    kernel: Kernel,
    function: Callable[..., Lanes],
    result: str,
    *sources: str,
) -> Step:
    """A step that writes `function` of the source operands, lane by lane.

    Args:
        instruction: Its first operand is the destination.
        kernel: Where it stands.
        function: From arrays of `value_dtype` of each source to one of the result.
        result: PTX type of the destination.
        sources: PTX types of the sources.

    Raises:
        OperandError: If the operands do not fit.
    """
    if len(instruction.operands) != 1 + len(sources):
        raise OperandError(f"it has {len(instruction.operands)} operands, not {1 + len(sources)}")
    write = writer(instruction.operands[0], result)
    reads = [values(o, t, kernel) for o, t in zip(instruction.operands[1:], sources, strict=True)]
    raw: Any = raw_dtype(result)
    compute = function
    if value_dtype(result) is not raw:

        def compute(*arguments: Lanes) -> Lanes:
            return function(*arguments).view(raw)

    return _applied(write, compute, reads)


def _applied(write: Writer, compute: Callable[..., Lanes], reads: list[Reader]) -> Step:
    """Read, compute, write; without a list for the usual two and three sources."""
    if len(reads) == 2:
        first, second = reads

        def two(warp: Warp, mask: Lanes) -> None:
            write(warp, compute(first(warp, mask), second(warp, mask)), mask)

        return two

    if len(reads) == 3:
        first, second, third = reads

        def three(warp: Warp, mask: Lanes) -> None:
            write(warp, compute(first(warp, mask), second(warp, mask), third(warp, mask)), mask)

        return three

    def any_number(warp: Warp, mask: Lanes) -> None:
        write(warp, compute(*[read(warp, mask) for read in reads]), mask)

    return any_number
