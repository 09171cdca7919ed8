"""Data movement: `mov`, `ld`, `st`, address conversion and prefetches.

Cache and eviction hints change nothing here; `.volatile`, `.relaxed`, `.acquire` and `.release`
make an access that cannot race with its like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import (
    OperandError,
    Reader,
    Writer,
    address,
    constant,
    raw_dtype,
    reader,
    writer,
)
from l2tune.runtime.emulator.program import (
    Address,
    Instruction,
    Kernel,
    Operand,
    Symbol,
    Vector,
)
from l2tune.runtime.emulator.spaces import (
    CONST,
    LOCAL,
    PARAM,
    RANK_BYTES,
    SHARED,
    SPACE_BYTES,
)
from l2tune.runtime.emulator.warp import Lanes, Step, Warp, width_bytes

_SPACES = {
    "global": "global", "shared": "shared", "shared::cta": "shared", "local": "local",
    "shared::cluster": "shared::cluster", "param": "param", "param::entry": "param",
    "const": "const",
}  # fmt: skip
_STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")
_HINTS = ("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "weak", "cta", "cluster", "gpu", "sys",
          "unified")  # fmt: skip
_BASES = {"shared": SHARED, "shared::cta": SHARED, "local": LOCAL, "param": PARAM,
          "const": CONST, "global": 0}  # fmt: skip


def _mov(instruction: Instruction, kernel: Kernel) -> Step | None:
    (ptx_type,) = instruction.modifiers
    target, source = instruction.operands
    if isinstance(source, Vector):
        return _pack(source, target, ptx_type, kernel)
    if isinstance(target, Vector):
        return _unpack(source, target, ptx_type, kernel)
    raw = "b" + ptx_type[1:] if ptx_type[0] in "us" else ptx_type
    read, write = reader(source, raw, kernel), writer(target, raw)
    return lambda warp, mask: write(warp, read(warp, mask), mask)


def _part(ptx_type: str, vector: Vector) -> str:
    bits = 8 * width_bytes(ptx_type)
    if len(vector.items) not in (2, 4, 8) or bits % len(vector.items):
        raise OperandError(f"{len(vector.items)} parts do not make a {ptx_type}")
    return f"b{bits // len(vector.items)}"


def _pack(source: Vector, target: Operand, ptx_type: str, kernel: Kernel) -> Step:
    whole: Any = raw_dtype(ptx_type)
    reads = [reader(item, _part(ptx_type, source), kernel) for item in source.items]
    write = writer(target, ptx_type)

    def step(warp: Warp, mask: Lanes) -> None:
        parts = np.stack([read(warp, mask) for read in reads], axis=1)
        write(warp, parts.view(whole)[:, 0], mask)

    return step


def _unpack(source: Operand, target: Vector, ptx_type: str, kernel: Kernel) -> Step:
    part = _part(ptx_type, target)
    half: Any = raw_dtype(part)
    read = reader(source, ptx_type, kernel)
    writes = [writer(item, part) for item in target.items]

    def step(warp: Warp, mask: Lanes) -> None:
        parts = read(warp, mask).view(half).reshape(-1, len(writes))
        for index, write in enumerate(writes):
            write(warp, parts[:, index].copy(), mask)

    return step


def access(modifiers: tuple[str, ...]) -> tuple[str, bool, int, str]:
    """State space, whether it is strong, vector length and type of an access's modifiers.

    Raises:
        KeyError: At a modifier that is not known.
    """
    *words, ptx_type = modifiers
    space, strong, count = "generic", False, 1
    for word in words:
        if word in _SPACES:
            space = _SPACES[word]
        elif word in _STRONG:
            strong = True
        elif word in ("v2", "v4", "v8"):
            count = int(word[1:])
        elif word not in _HINTS and not word.startswith(("L1::", "L2::")):
            raise KeyError(word)
    return space, strong, count, ptx_type


def items(operand: Operand, count: int) -> tuple[Operand | None, ...]:
    """The registers of a vector operand, or the one that stands alone."""
    found = operand.items if isinstance(operand, Vector) else (operand,)
    if len(found) != count:
        raise OperandError(f"{len(found)} registers where {count} are moved")
    return found


def _ld(instruction: Instruction, kernel: Kernel) -> Step:
    space, strong, count, ptx_type = access(instruction.modifiers)
    target, source = instruction.operands[:2]
    writes = [writer(item, ptx_type) for item in items(target, count)]
    if space == "param" and isinstance(source, Address) and isinstance(source.base, Symbol):
        names = [variable.name for variable in kernel.params]
        if source.base.name in names:
            return _ld_param(names.index(source.base.name), source.offset, writes, ptx_type)
        space = "local"  # a function's parameter or a call's result
    where, dtype = address(source, kernel), raw_dtype(ptx_type)
    element = width_bytes(ptx_type)
    size = element * count

    def step(warp: Warp, mask: Lanes) -> None:
        data: Lanes = _load(warp, mask, space, where(warp, mask), size, strong).view(dtype)
        if count == 1:
            writes[0](warp, data[:, 0], mask)
            return
        columns = np.ascontiguousarray(data.T)
        for index, write in enumerate(writes):
            write(warp, columns[index], mask)

    return step


def _load(
    warp: Warp, mask: Lanes, space: str, where: Lanes, size: int, strong: bool
) -> Lanes:  # fmt: skip
    """Bytes [32, size]; 32 bytes a lane are two accesses of 16."""
    memory = warp.block.machine.memory
    if size <= 16:
        return memory.load(warp, mask, space, where, size, atomic=strong)
    halves: list[Lanes] = [
        memory.load(warp, mask, space, where + np.uint64(at), 16, atomic=strong)
        for at in range(0, size, 16)
    ]
    return np.concatenate(halves, axis=1)


def _ld_param(index: int, offset: int, writes: list[Writer], ptx_type: str) -> Step:
    """A parameter by name: the same for all lanes."""
    size = width_bytes(ptx_type)

    def step(warp: Warp, mask: Lanes) -> None:
        data: bytes = warp.block.machine.params[index]
        for item, write in enumerate(writes):
            start = offset + item * size
            value = int.from_bytes(data[start : start + size], "little")
            write(warp, constant(value, ptx_type), mask)

    return step


def _st(instruction: Instruction, kernel: Kernel) -> Step | None:
    if instruction.modifiers[0] in ("async", "bulk"):
        return None
    space, strong, count, ptx_type = access(instruction.modifiers)
    target, source = instruction.operands[:2]
    raw = "b" + ptx_type[1:] if ptx_type[0] in "us" else ptx_type
    reads = [reader(item, raw, kernel) for item in items(source, count)]
    where = address(target, kernel)
    if space == "param":
        space = "local"  # a call's parameter or a function's result

    def step(warp: Warp, mask: Lanes) -> None:
        if count == 1:
            value = np.ascontiguousarray(reads[0](warp, mask))[:, None]
        else:
            value = np.stack([read(warp, mask) for read in reads], axis=1)
        data, at, memory = value.view(np.uint8), where(warp, mask), warp.block.machine.memory
        for start in range(0, data.shape[1], 16):
            part = data[:, start : start + 16]
            memory.store(
                warp, mask, space, at + np.uint64(start) if start else at, part, atomic=strong
            )

    return step


def _cvta(instruction: Instruction, kernel: Kernel) -> Step:
    """Between an address in a state space and the generic one."""
    *to, space, ptx_type = instruction.modifiers
    if "u" + ptx_type[1:] not in ("u32", "u64") or to not in ([], ["to"]):
        raise KeyError(ptx_type)
    read = _address_of(instruction.operands[1], ptx_type, kernel)
    write = writer(instruction.operands[0], ptx_type)
    dtype: Any = raw_dtype(ptx_type)
    if space == "shared::cluster":
        base, own = SHARED - RANK_BYTES, 0
    else:
        base, own = _BASES[space], RANK_BYTES if space.startswith("shared") else 0

    def step(warp: Warp, mask: Lanes) -> None:
        start = np.uint64(base + own * warp.block.rank)
        value = read(warp, mask).astype(np.uint64)
        write(warp, (value - start if to else value + start).astype(dtype), mask)

    return step


def _address_of(operand: Operand, ptx_type: str, kernel: Kernel) -> Reader:
    if isinstance(operand, Address):
        return address(operand, kernel)
    return reader(operand, ptx_type, kernel)


def _isspacep(instruction: Instruction, kernel: Kernel) -> Step:
    (space,) = instruction.modifiers
    base = {**_BASES, "shared::cluster": SHARED, "param::entry": PARAM}[space]
    own, others = space in ("shared", "shared::cta"), list(_BASES.values())[1:]
    read = _address_of(instruction.operands[1], "u64", kernel)
    write = writer(instruction.operands[0], "pred")

    def step(warp: Warp, mask: Lanes) -> None:
        at = read(warp, mask)
        if space == "global":
            inside = at >= np.uint64(max(others) + SPACE_BYTES)
        else:
            start = base + (RANK_BYTES * warp.block.rank if own else 0)
            inside = at - np.uint64(start) < np.uint64(RANK_BYTES if own else SPACE_BYTES)
        write(warp, inside, mask)

    return step


def _nothing(instruction: Instruction, kernel: Kernel) -> Step:
    """A hint: its operands must be defined, and that is all."""
    reads = [
        address(operand, kernel) for operand in instruction.operands if isinstance(operand, Address)
    ]

    def step(warp: Warp, mask: Lanes) -> None:
        for read in reads:
            read(warp, mask)

    return step


def _createpolicy(instruction: Instruction, kernel: Kernel) -> Step:
    """A cache policy is opaque and changes no result."""
    write, policy = writer(instruction.operands[0], "b64"), constant(0, "b64")
    return lambda warp, mask: write(warp, policy, mask)


def _trap(instruction: Instruction, kernel: Kernel) -> Step:
    """`trap` and `brkpt` end the launch."""
    return lambda warp, mask: warp.stop(Fault.TRAP, f"the kernel runs {instruction.opcode}", mask)


BUILDERS: dict[str, Callable[[Instruction, Kernel], Step | None]] = {
    "mov": _mov,
    "ld": _ld,
    "ldu": _ld,
    "st": _st,
    "cvta": _cvta,
    "isspacep": _isspacep,
    "prefetch": _nothing,
    "prefetchu": _nothing,
    "applypriority": _nothing,
    "discard": _nothing,
    "pmevent": _nothing,
    "createpolicy": _createpolicy,
    "trap": _trap,
    "brkpt": _trap,
}
