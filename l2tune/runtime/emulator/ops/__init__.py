"""What each instruction means: one module a family, each with its `BUILDERS`.

A family's builder returns None, or raises KeyError, for an instruction of another family that has
the same opcode (`cp`, `add`); what no family builds is refused when the kernel is loaded.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

from l2tune.runtime.emulator.operands import OperandError
from l2tune.runtime.emulator.program import Instruction, Kernel, UnsupportedInstructionError
from l2tune.runtime.emulator.warp import Step

Builder = Callable[[Instruction, Kernel], Step | None]


@functools.cache
def _builders() -> dict[str, list[Builder]]:
    found: dict[str, list[Builder]] = {}
    for module in pkgutil.iter_modules(__path__):
        family = importlib.import_module(f"{__name__}.{module.name}")
        for opcode, builder in getattr(family, "BUILDERS", {}).items():
            found.setdefault(opcode, []).append(builder)
    return found


def build(instruction: Instruction, kernel: Kernel) -> Step:
    """The step of an instruction; control flow is the machine's.

    Raises:
        UnsupportedInstructionError: If no family knows it.
    """
    why = ""
    for builder in _builders().get(instruction.opcode, ()):
        try:
            step = builder(instruction, kernel)
        except UnsupportedInstructionError:
            raise
        except OperandError as error:
            why = str(error)
        except (KeyError, IndexError):
            continue
        else:
            if step is not None:
                return step
    raise UnsupportedInstructionError(instruction, why)
