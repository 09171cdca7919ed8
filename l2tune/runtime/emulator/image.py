"""Where the variables of a kernel lie: each in its state space, at an offset or an address."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from l2tune.runtime.emulator.buffers import GlobalMemory
from l2tune.runtime.emulator.linker import deepest_bytes
from l2tune.runtime.emulator.program import (
    Address,
    Kernel,
    Module,
    Operand,
    Pair,
    Symbol,
    Variable,
    Vector,
)

_DYNAMIC_ALIGN = _FRAME_ALIGN = 16
_FRAME = ("local", "param")
"""State spaces of variables that a thread has of its own; a kernel's own parameters apart."""


@dataclasses.dataclass(frozen=True)
class Image:
    """A kernel laid out for a launch.

    Attributes:
        addresses: Of every variable within its own state space, by name.
        shared_bytes: Static and dynamic.
        local_bytes: Of each thread, with the frames of functions.
        frame_bytes: By function, and of the kernel's own as "", where it calls any.
        param: The parameters.
        const: Constant memory.
    """

    addresses: dict[str, int]
    shared_bytes: int
    local_bytes: int
    frame_bytes: dict[str, int]
    param: bytes
    const: bytes


def lay_out(
    module: Module, kernel: Kernel, memory: GlobalMemory, *, params: list[bytes], smem_bytes: int
) -> Image:
    """Lay out a kernel; file-scope `.global` variables are mapped once for all its launches.

    Raises:
        ValueError: If `params` are not those that the kernel takes.
    """
    functions = kernel.functions
    variables = (
        *module.variables.values(),
        *kernel.variables,
        *[v for function in functions.values() for v in function.variables],
    )
    used = set(_symbols(kernel))
    addresses: dict[str, int] = {}
    shared = [v for v in variables if v.space == "shared" and v.name in used]
    shared_bytes = _in_order([v for v in shared if v.size_bytes], addresses)
    dynamic = [v for v in shared if not v.size_bytes]
    align = max((_DYNAMIC_ALIGN, *(v.align_bytes for v in dynamic)))
    if dynamic or smem_bytes:
        shared_bytes = -(-shared_bytes // align) * align
    addresses |= {v.name: shared_bytes for v in dynamic}
    own = [v for v in (*module.variables.values(), *kernel.variables) if v.space in _FRAME]
    own_bytes = _in_order(sorted(own, key=lambda v: v.space, reverse=True), addresses)
    frame_bytes = {name: _frame(f.in_frame, addresses) for name, f in functions.items()}
    local_bytes = own_bytes
    if functions:
        frame_bytes[""] = -(-own_bytes // _FRAME_ALIGN) * _FRAME_ALIGN
        local_bytes = frame_bytes[""] + deepest_bytes(kernel, frame_bytes)
    constants = [v for v in variables if v.space == "const"]
    const = bytearray(_in_order(constants, addresses))
    for v in constants:
        const[addresses[v.name] : addresses[v.name] + len(v.initial)] = v.initial
    for v in variables:
        if v.space == "global":
            addresses[v.name] = _global(v, memory)
    param = _parameters(kernel, params, addresses)
    return Image(
        addresses, shared_bytes + smem_bytes, local_bytes, frame_bytes, param, bytes(const)
    )


def _frame(variables: Sequence[Variable], addresses: dict[str, int]) -> int:
    """Place variables from the start of a frame on; return its size."""
    return -(-_in_order(variables, addresses) // _FRAME_ALIGN) * _FRAME_ALIGN


def _in_order(variables: Sequence[Variable], addresses: dict[str, int]) -> int:
    """Place variables one after the other; return where the last ends."""
    end = 0
    for v in variables:
        addresses[v.name] = -(-end // max(v.align_bytes, 1)) * max(v.align_bytes, 1)
        end = addresses[v.name] + v.size_bytes
    return end


def _global(v: Variable, memory: GlobalMemory) -> int:
    name = f"variable {v.name}"
    address = memory.address(name)
    if address is None:
        data = np.zeros(v.size_bytes, dtype=np.uint8)
        data[: len(v.initial)] = np.frombuffer(v.initial, dtype=np.uint8)
        address = memory.add(name, data, kind="scratch")
    return address


def _parameters(kernel: Kernel, params: list[bytes], addresses: dict[str, int]) -> bytes:
    if len(params) != len(kernel.params):
        raise ValueError(
            f"{kernel.name}: got {len(params)} parameters, needed {len(kernel.params)}"
        )
    image = bytearray(_in_order(list(kernel.params), addresses))
    for v, value in zip(kernel.params, params, strict=True):
        if len(value) != v.size_bytes:
            raise ValueError(f"{v.name}: got {len(value)} bytes, needed {v.size_bytes}")
        image[addresses[v.name] : addresses[v.name] + len(value)] = value
    return bytes(image)


def _symbols(kernel: Kernel) -> Iterator[str]:
    for instruction in kernel.instructions:
        for operand in instruction.operands:
            yield from _names(operand)


def _names(operand: Operand | None) -> Iterator[str]:
    if isinstance(operand, Symbol):
        yield operand.name
    elif isinstance(operand, Address):
        yield from _names(operand.base)
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _names(item)
    elif isinstance(operand, Pair):
        yield from _names(operand.first)
        yield from _names(operand.second)
