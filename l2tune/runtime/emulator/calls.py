"""Calls of functions: parameters and results in frames of local memory, and the way back.

Each lane has its own frame and its own stack of calls, so that lanes may call one function from
different places. Registers belong to the function; where one may call itself, its caller's are kept
until the call returns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.linker import MAX_DEPTH, callee_of, calls_itself
from l2tune.runtime.emulator.program import (
    Function,
    Instruction,
    Kernel,
    Symbol,
    UnsupportedInstructionError,
    Vector,
)
from l2tune.runtime.emulator.warp import FULL, Lanes, Warp

Kept = list[tuple[int, Lanes | None, Lanes | None]]
"""Registers: slot, value, lanes that it is defined in."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """A call that has not returned.

    Attributes:
        function: That runs.
        back: Index of the instruction after the call.
        caller_bytes: Size of the caller's frame.
        results: Names of the caller's variables that the results go to.
        kept: What the function's registers held before.
    """

    function: Function
    back: int
    caller_bytes: int
    results: tuple[str, ...]
    kept: Kept


def entering(
    instruction: Instruction, at: int, kernel: Kernel
) -> Callable[[Warp, Lanes], int | None]:
    """What the `call` at an index of a kernel's instructions does to a warp.

    Returns:
        A function that tells where the lanes go on, None for the next instruction.

    Raises:
        UnsupportedInstructionError: If it is not known what it calls.
    """
    name = callee_of(instruction)
    function = kernel.functions.get(name or "")
    results, params = _lists(instruction)
    if name == "vprintf":
        return _printing_nothing(results)
    if function is None:
        what = f"{name} is not defined in this module" if name else "calls through a register"
        raise UnsupportedInstructionError(instruction, what)
    if len(params) != len(function.params) or len(results) not in (0, len(function.results)):
        raise UnsupportedInstructionError(instruction, "its parameters are not the function's")
    caller = _owner(at, kernel)
    callee, slots = function, [register.slot for register in function.registers]
    keeps = calls_itself(function, kernel.functions)

    def enter(warp: Warp, mask: Lanes) -> int:
        image = warp.block.machine.image
        own = image.frame_bytes[caller]
        deep = mask & np.array([len(calls) >= MAX_DEPTH for calls in warp.calls])
        if deep.any():
            warp.stop(Fault.RESOURCES, f"{MAX_DEPTH} calls within each other, and one more", deep)
        before, after = warp.frame, np.where(mask, warp.frame + np.uint64(own), warp.frame)
        _clear(warp, mask, after, image.frame_bytes[callee.name])
        for source, variable in zip(params, callee.params, strict=True):
            where = image.addresses[source], image.addresses[variable.name]
            _copy(warp, mask, (before, where[0]), (after, where[1]), variable.size_bytes)
        kept = [(slot, warp.registers[slot], warp.defined[slot]) for slot in slots]
        for slot, _, defined in kept:
            warp.defined[slot] = None if defined is None else defined & ~mask
        call = _Call(callee, at + 1, own, results, kept if keeps else [])
        for lane in np.flatnonzero(mask).tolist():
            warp.calls[lane].append(call)
        warp.frame = after
        return callee.start

    return enter


def leave(warp: Warp, mask: Lanes) -> Lanes:
    """Return from a function; where each lane goes on, as an array of all lanes."""
    tops = {lane: warp.calls[lane].pop() for lane in np.flatnonzero(mask).tolist()}
    back = np.zeros(len(mask), dtype=np.int64)
    image = warp.block.machine.image
    for call in dict.fromkeys(tops.values()):
        lanes = np.array([tops.get(lane) is call for lane in range(len(mask))])
        before = warp.frame
        after = np.where(lanes, before - np.uint64(call.caller_bytes), before)
        for variable, target in zip(call.function.results, call.results, strict=False):
            where = image.addresses[variable.name], image.addresses[target]
            _copy(warp, lanes, (before, where[0]), (after, where[1]), variable.size_bytes)
        for slot, value, defined in call.kept:
            _restore(warp, slot, value, defined, lanes)
        warp.frame, back[lanes] = after, call.back
    return back


def _restore(
    warp: Warp, slot: int, value: Lanes | None, defined: Lanes | None, lanes: Lanes
) -> None:
    now, held = warp.registers[slot], warp.defined[slot]
    if value is not None:
        warp.registers[slot] = value if now is None else np.where(lanes, value, now)
    nothing = np.zeros_like(lanes)
    old, new = nothing if defined is None else defined, nothing if held is None else held
    mixed = np.where(lanes, old, new)
    warp.defined[slot] = FULL if mixed.all() else mixed


def _lists(instruction: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the variables that a call gets its results in, and of those that it passes."""
    lists: list[tuple[str, ...]] = [(), ()]
    passes = 0
    for operand in instruction.operands:
        if isinstance(operand, Symbol):
            passes = 1
        elif isinstance(operand, Vector):
            names = [item.name for item in operand.items if isinstance(item, Symbol)]
            if len(names) != len(operand.items):
                raise UnsupportedInstructionError(instruction, "it passes what is no variable")
            lists[passes] = tuple(names)
    return lists[0], lists[1]


def _owner(at: int, kernel: Kernel) -> str:
    """The function that an instruction belongs to, "" for the kernel itself."""
    for name, function in kernel.functions.items():
        if function.start <= at <= function.start + len(function.instructions):
            return name
    return ""


def _bytes(mask: Lanes, frame: Lanes, offset: int, size: int) -> tuple[Lanes, Lanes]:
    """Lane and place in its local memory of some bytes of each active lane."""
    lanes = np.flatnonzero(mask)
    first = frame[lanes].astype(np.int64) + offset
    return lanes[:, None], first[:, None] + np.arange(size)


def _clear(warp: Warp, mask: Lanes, frame: Lanes, size: int) -> None:
    """Begin a frame, in which nothing is written."""
    if not size:
        return
    written = warp.block.machine.memory.places.local_of(warp).written
    assert written is not None
    written.reshape(len(mask), -1)[_bytes(mask, frame, 0, size)] = 0


def _copy(
    warp: Warp, mask: Lanes, source: tuple[Lanes, int], target: tuple[Lanes, int], size: int
) -> None:
    """Copy bytes between frames, and whether each is written: a structure may have gaps."""
    local = warp.block.machine.memory.places.local_of(warp)
    for array in (local.data, local.written):
        assert array is not None
        rows = array.reshape(len(mask), -1)
        rows[_bytes(mask, *target, size)] = rows[_bytes(mask, *source, size)]


def _printing_nothing(results: tuple[str, ...]) -> Callable[[Warp, Lanes], None]:
    """`vprintf`: prints nothing, and returns 0."""

    def step(warp: Warp, mask: Lanes) -> None:
        machine = warp.block.machine
        zero = np.zeros((len(mask), 4), dtype=np.uint8)
        for name in results:
            where = warp.frame + np.uint64(machine.image.addresses[name])
            machine.memory.store(warp, mask, "local", where, zero)

    return step
