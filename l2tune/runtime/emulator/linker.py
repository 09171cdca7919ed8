"""Puts the functions that a kernel calls in front of its own instructions.

In front, and callees before callers: the lanes at the lowest instruction run first, so those that
left for a function are back before the others go on without them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from l2tune.runtime.emulator.program import Function, Instruction, Kernel, Register, Symbol

MAX_DEPTH = 64
"""Calls of a thread within each other, where functions call themselves."""

_END = Instruction("ret", (), (), None, 0, None, "(end of the function)")


def link(kernel: Kernel, functions: Mapping[str, Function]) -> Kernel:
    """A kernel with all that it calls, as far as `functions` has it.

    Args:
        kernel: Its registers have the slots after those of all functions.
        functions: Of its module, by name.
    """
    order: dict[str, Function] = {}
    _visit(kernel.instructions, functions, order, set())
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for name, function in order.items():
        start = len(code)
        order[name] = dataclasses.replace(function, start=start)
        labels |= {label: start + at for label, at in function.labels.items()}
        code += [*function.instructions, _END]
    registers: list[Register] = [r for function in functions.values() for r in function.registers]
    return dataclasses.replace(
        kernel,
        registers=(*registers, *kernel.registers),
        instructions=(*code, *kernel.instructions),
        labels=labels | {label: len(code) + at for label, at in kernel.labels.items()},
        start=len(code),
        functions=order,
    )


def callee_of(instruction: Instruction) -> str | None:
    """The name of the function that a `call` names, or None."""
    if instruction.opcode != "call":
        return None
    return next((o.name for o in instruction.operands if isinstance(o, Symbol)), None)


def callees(function: Function, functions: Mapping[str, Function]) -> list[Function]:
    """The functions that one calls."""
    names = dict.fromkeys(map(callee_of, function.instructions))
    return [functions[name] for name in names if name is not None and name in functions]


def calls_itself(function: Function, functions: Mapping[str, Function]) -> bool:
    """Whether a function may come to be called while it runs."""
    found: dict[str, Function] = {}
    _visit(function.instructions, functions, found, set())
    return function.name in found


def deepest_bytes(kernel: Kernel, frame_bytes: Mapping[str, int]) -> int:
    """The most bytes of frames that calls of a thread within each other have."""
    functions = kernel.functions
    if any(calls_itself(f, functions) for f in functions.values()):
        return MAX_DEPTH * max(frame_bytes.values())
    deepest: dict[str, int] = {}
    for name, function in functions.items():  # callees come first
        below = [deepest[other.name] for other in callees(function, functions)]
        deepest[name] = frame_bytes[name] + max(below, default=0)
    return max(deepest.values(), default=0)


def _visit(
    instructions: Iterable[Instruction], functions: Mapping[str, Function],
    found: dict[str, Function], entered: set[str],
) -> None:  # fmt: skip
    """Add what instructions call, each after what it calls itself."""
    for name in dict.fromkeys(map(callee_of, instructions)):
        if name is not None and name in functions and name not in entered:
            entered.add(name)
            _visit(functions[name].instructions, functions, found, entered)
            found[name] = functions[name]
