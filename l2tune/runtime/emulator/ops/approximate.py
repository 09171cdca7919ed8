"""Functions that the hardware approximates: `ex2`, `lg2`, `sin`, `cos`, `tanh`, `rsqrt`.

They are computed in float64 and rounded once, so they differ from the hardware by the error that
the PTX manual allows it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from l2tune.runtime.emulator.ops.floating import Form, form, general
from l2tune.runtime.emulator.program import Instruction, Kernel
from l2tune.runtime.emulator.warp import Lanes, Step

Function = Callable[[Lanes], Lanes]

_FUNCTIONS: dict[str, tuple[Function, tuple[str, ...]]] = {
    "ex2": (np.exp2, ("f32", "f16", "bf16")),
    "lg2": (np.log2, ("f32",)),
    "sin": (np.sin, ("f32",)),
    "cos": (np.cos, ("f32",)),
    "tanh": (np.tanh, ("f32", "f16", "bf16")),
    "rsqrt": (lambda a: 1 / np.sqrt(a), ("f32", "f64")),
}


def _function(instruction: Instruction, kernel: Kernel) -> Step | None:
    how: Form = form(instruction, ("approx", "ftz"))
    function, types = _FUNCTIONS[instruction.opcode]
    if how.single not in types:
        return None
    return general(instruction, kernel, how, lambda a: function(a.astype(np.float64)), 1)


BUILDERS = dict.fromkeys(_FUNCTIONS, _function)
