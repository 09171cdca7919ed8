"""Matrix instructions of one warp: `mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix`.

A fragment is gathered into a matrix, and a matrix scattered to fragments, by tables of indices made
once per shape. PTX ISA, "Matrix Fragments for mma.m16n8k16" and "...m16n8k8", "ldmatrix",
"stmatrix", "movmatrix". 8x8 matrices of 16-bit elements, f16 and bf16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import address, reader
from l2tune.runtime.emulator.ops.collective import require_whole_warp
from l2tune.runtime.emulator.ops.tensor_math import GENERATIONS, TensorCore, dot_accumulate
from l2tune.runtime.emulator.program import (
    WARP_LANES,
    Instruction,
    Kernel,
    Operand,
    Register,
    UnsupportedInstructionError,
    Vector,
)
from l2tune.runtime.emulator.warp import FULL, Lanes, Step, Warp

Array = np.ndarray[Any, Any]

_ROW_BYTES = 16
"""Of an 8x8 matrix."""


def tensor_core(warp: Warp) -> TensorCore:
    """The arithmetic of the machine that the warp runs on."""
    machine = warp.block.machine
    chosen: TensorCore | None = getattr(machine, "tensor_core", None)
    found = chosen or GENERATIONS.get(machine.module.target)
    if found is None:
        assert warp.instruction is not None
        raise UnsupportedInstructionError(
            warp.instruction, f"how tensor cores of {machine.module.target} add up is not known"
        )
    return found


@functools.cache
def operand_tables(k: int) -> tuple[Array, Array]:
    """Which 16-bit half of the fragments each element of A `[16, k]` and B `[k, 8]` is.

    A lane's register holds two neighbours along k. A's registers are rows 0-7 and 8-15 of k 0-7,
    then of k 8-15; lane l has row l / 4 and k 2 * (l % 4).
    """
    row, column = np.indices((16, k))
    register = column // 8 * 2 + row // 8
    a = (register * WARP_LANES + row % 8 * 4 + column % 8 // 2) * 2 + column % 2
    depth, across = np.indices((k, 8))
    b = (depth // 8 * WARP_LANES + across * 4 + depth % 8 // 2) * 2 + depth % 2
    return a, b


@functools.cache
def accumulator_tables(accumulator: str, columns: int) -> tuple[Array, Array]:
    """Between accumulator fragments of 16 rows and the matrix `[16, columns]`.

    Returns:
        Of each element, its place among the fragments' values in order of register, lane and half
        (one value a lane for f32, two for f16); and the inverse.
    """
    row, column = np.indices((16, columns))
    lane = row % 8 * 4 + column % 8 // 2
    if accumulator == "f32":
        register = column // 8 * 4 + row // 8 * 2 + column % 2
        place = register * WARP_LANES + lane
    else:
        register = column // 8 * 2 + row // 8
        place = (register * WARP_LANES + lane) * 2 + column % 2
    return place, np.argsort(place.reshape(-1))


Gather = Callable[[Warp, Lanes], Array]
"""A vector operand's registers, one after the other, 32 lanes each."""


def gather(operand: Operand, kernel: Kernel) -> Gather:
    """How to read a vector of 32-bit registers as `uint32[32 * registers]`."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    reads = [reader(item, "b32", kernel) for item in items]
    return lambda warp, mask: np.concatenate([read(warp, mask) for read in reads])


def registers_of(operand: Operand) -> list[Register]:
    """The registers of a vector operand.

    Raises:
        KeyError: If it holds anything else.
    """
    items = operand.items if isinstance(operand, Vector) else (operand,)
    found = [item for item in items if isinstance(item, Register)]
    if len(found) != len(items):
        raise KeyError(operand)
    return found


def _mma(instruction: Instruction, kernel: Kernel) -> Step:
    modifiers = instruction.modifiers
    shape, layouts, types = modifiers[2], modifiers[3:5], modifiers[5:]
    accumulator, element = types[0], types[1]
    if (
        shape not in ("m16n8k16", "m16n8k8") or layouts != ("row", "col") or len(types) != 4
        or types[2] != element or types[3] != accumulator or element not in ("f16", "bf16")
        or accumulator not in (("f32", "f16") if element == "f16" else ("f32",))
    ):  # fmt: skip
        raise UnsupportedInstructionError(instruction, "shape, order or types")
    index_a, index_b = operand_tables(16 if shape.endswith("k16") else 8)
    index_c, index_d = accumulator_tables(accumulator, 8)
    target = registers_of(instruction.operands[0])
    read_a, read_b, read_c = (gather(operand, kernel) for operand in instruction.operands[1:])
    unit = np.uint32 if accumulator == "f32" else np.uint16

    def step(warp: Warp, mask: Lanes) -> None:
        require_whole_warp(warp, mask)
        a = read_a(warp, FULL).view(np.uint16)[index_a]
        b = read_b(warp, FULL).view(np.uint16)[index_b]
        c = read_c(warp, FULL).view(unit)[index_c]
        d = dot_accumulate(
            a, b, c, element=element, accumulator=accumulator, core=tensor_core(warp)
        )
        rows = d.reshape(-1)[index_d].view(np.uint32).reshape(-1, WARP_LANES)
        for register, row in zip(target, rows, strict=True):
            warp.write(register, row, FULL)

    return step


def _matrix_rows(
    instruction: Instruction, operand: Operand, kernel: Kernel
) -> tuple[int, Callable[[Warp], tuple[Any, Array]]]:
    """How many matrices, and how to find the block and offsets of their rows."""
    modifiers = instruction.modifiers
    count = {"x1": 1, "x2": 2, "x4": 4}[modifiers[3]]
    if modifiers[2] != "m8n8" or modifiers[-1] != "b16":
        raise UnsupportedInstructionError(instruction, "only 8x8 matrices of b16 are known")
    where = address(operand, kernel)
    space = next((part for part in modifiers if part.startswith("shared")), "generic")

    def rows(warp: Warp) -> tuple[Any, Array]:
        addresses = where(warp, FULL)[: 8 * count]
        block, first = warp.block.machine.memory.shared_target(warp, space, int(addresses[0]))
        offsets = addresses.astype(np.int64) - (int(addresses[0]) - first)
        return block, offsets

    return count, rows


def _require_rows(warp: Warp, offsets: Array) -> None:
    wrong = np.flatnonzero(offsets % _ROW_BYTES)
    if len(wrong):
        warp.stop(
            Fault.MISALIGNED,
            f"a matrix row at {int(offsets[wrong[0]]):#x}, needed a multiple of {_ROW_BYTES}",
            np.arange(WARP_LANES) == wrong[0],
            address=int(offsets[wrong[0]]),
        )


def _count(warp: Warp, instruction: Instruction, offsets: Array) -> None:
    """Count passes over the banks: eight rows of 16 bytes at a time."""
    statistics = warp.block.machine.statistics
    statistics.access(instruction, "shared", offsets.astype(np.uint64), _ROW_BYTES)


def _ldmatrix(instruction: Instruction, kernel: Kernel) -> Step:
    target = registers_of(instruction.operands[0])
    count, find = _matrix_rows(instruction, instruction.operands[1], kernel)
    transposed = "trans" in instruction.modifiers

    def step(warp: Warp, mask: Lanes) -> None:
        require_whole_warp(warp, mask)
        block, offsets = find(warp)
        _require_rows(warp, offsets)
        memory = warp.block.machine.memory
        data = memory.read_shared(warp, block, offsets, _ROW_BYTES, ticket=None, proxy="generic")
        _count(warp, instruction, offsets)
        matrices = np.ascontiguousarray(data).view(np.uint16).reshape(count, 8, 8)
        if transposed:
            matrices = np.ascontiguousarray(matrices.transpose(0, 2, 1))
        # Lane l takes elements 2l and 2l + 1 of a matrix read row by row.
        lanes = matrices.reshape(count, 64).view(np.uint32)
        for register, row in zip(target, lanes, strict=True):
            warp.write(register, row, FULL)

    return step


def _stmatrix(instruction: Instruction, kernel: Kernel) -> Step:
    count, find = _matrix_rows(instruction, instruction.operands[0], kernel)
    read = gather(instruction.operands[1], kernel)
    transposed = "trans" in instruction.modifiers

    def step(warp: Warp, mask: Lanes) -> None:
        require_whole_warp(warp, mask)
        block, offsets = find(warp)
        _require_rows(warp, offsets)
        matrices = read(warp, FULL).view(np.uint16).reshape(count, 8, 8)
        if transposed:
            matrices = matrices.transpose(0, 2, 1)
        data = np.ascontiguousarray(matrices).reshape(-1, 8).view(np.uint8)
        warp.block.machine.memory.write_shared(warp, block, offsets, data, ticket=None)
        _count(warp, instruction, offsets)

    return step


def _movmatrix(instruction: Instruction, kernel: Kernel) -> Step:
    if instruction.modifiers[2:] != ("m8n8", "trans", "b16"):
        raise UnsupportedInstructionError(instruction, "only 8x8 matrices of b16 are known")
    (target,) = registers_of(instruction.operands[0])
    read = gather(instruction.operands[1], kernel)

    def step(warp: Warp, mask: Lanes) -> None:
        require_whole_warp(warp, mask)
        matrix = read(warp, FULL).view(np.uint16).reshape(8, 8)
        warp.write(target, np.ascontiguousarray(matrix.T).reshape(64).view(np.uint32), FULL)

    return step


BUILDERS = {
    "mma": _mma, "ldmatrix": _ldmatrix, "stmatrix": _stmatrix, "movmatrix": _movmatrix,
}  # fmt: skip
