"""What the emulator finds wrong, with where and why, as a compiler would say it."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from l2tune.runtime.emulator.statistics import Statistics


class Fault(StrEnum):
    """Kinds of findings; docs/emulator.md describes each."""

    OUT_OF_BOUNDS = "out_of_bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED = "uninitialised"
    WRITE_TO_INPUT = "write_to_input"
    SHARED_RACE = "shared_race"
    GLOBAL_RACE = "global_race"
    IGNORES_DEPENDENCY = "ignores_dependency"
    MISSING_PROXY_FENCE = "missing_proxy_fence"
    ACCUMULATOR_IN_FLIGHT = "accumulator_in_flight"
    BARRIER_DIVERGENCE = "barrier_divergence"
    DEADLOCK = "deadlock"
    STEP_BUDGET = "step_budget"
    RESOURCES = "resources"
    UNFINISHED_ASYNC = "unfinished_async"
    TRAP = "trap"
    INVALID_USE = "invalid_use"


@dataclasses.dataclass(frozen=True)
class EmulatorFinding:
    """One thing that is wrong.

    Attributes:
        fault: Its kind.
        message: One sentence: what was found and what was expected.
        kernel: Entry name.
        line: Of the PTX text; 0 if it belongs to no instruction.
        instruction: Its text.
        source_line: File and line of the source, where known.
        block: Index of the block, x y z.
        thread: Linear index in the block, or None.
        address: Where, or None.
    """

    fault: Fault
    message: str
    kernel: str = ""
    line: int = 0
    instruction: str = ""
    source_line: tuple[str, int] | None = None
    block: tuple[int, int, int] | None = None
    thread: int | None = None
    address: int | None = None

    def __str__(self) -> str:
        where = (
            f"{self.source_line[0]}:{self.source_line[1]}"
            if self.source_line
            else f"ptx:{self.line}"
        )
        who = "" if self.block is None else f" [block {self.block}, thread {self.thread}]"
        return f"{where}: {self.fault.value}: {self.message}{who}\n    {self.instruction}"


class EmulationStopped(Exception):  # noqa: N818  # carries a finding to the end of the launch
    """The first finding, which ends the launch.

    Attributes:
        finding: What is wrong.
        statistics: What the contract's launches had executed until then; the last is the one that
            was stopped.
    """

    def __init__(self, finding: EmulatorFinding) -> None:
        super().__init__(str(finding))
        self.finding = finding
        self.statistics: tuple[Statistics, ...] = ()
