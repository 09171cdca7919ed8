"""Which warp runs next, and what happens when none can: late completions, a deadlock, a livelock.

Asynchronous operations complete as late as possible, so that a missing wait meets memory that is
not filled yet: one, the oldest, each time every warp waits, and one now and then while warps spin.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from l2tune.runtime.emulator.execution import Execution
from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.livelock import Watch
from l2tune.runtime.emulator.program import Instruction
from l2tune.runtime.emulator.warp import Warp

_QUANTUM = 512
_PATIENCE_ROUNDS, _NAP_ROUNDS = 64, 16
"""How long warps may spin before an operation completes; how much a round counts in which all
wait or sleep."""


class Pending(Protocol):
    """An asynchronous operation under way.

    Attributes:
        instruction: That started it.
    """

    instruction: Instruction | None

    @property
    def harmless(self) -> bool:
        """Whether a kernel may end without waiting for it."""

    def complete(self) -> None:
        """Carry it out and tell whoever waits for it."""


class Scheduler:
    """Runs the warps of the blocks that are resident together."""

    def __init__(
        self, execution: Execution, pending: list[Pending], *, seed: int | None, budget: int,
        on_steps: Callable[[int], None], changes: Callable[[], int],
    ) -> None:  # fmt: skip
        """Run warps in order, or, with a seed, in random order and for random stretches.

        Args:
            execution: Runs one warp.
            pending: Operations under way, the oldest first.
            seed: Of the order; None for each in turn.
            budget: Instructions that all warps of the launch may execute.
            on_steps: Told of every stretch's instructions.
            changes: How often anything that warps share has changed.
        """
        self._execution, self._pending = execution, pending
        self._random = None if seed is None else random.Random(seed)
        self._left = budget
        self._on_steps, self._changes = on_steps, changes
        self._delivered = 0

    def run(self, warps: list[Warp]) -> None:
        """Run warps until all have exited.

        Raises:
            EmulationStopped: At a finding, a deadlock, or when the budget is spent.
        """
        live = list(warps)
        rounds, watch = 0, Watch()
        while live:
            if self._random is not None:
                self._random.shuffle(live)
            stuck = sum([self._stretch(warp) for warp in live]) == 0
            if stuck:
                rounds = _PATIENCE_ROUNDS
            live = [warp for warp in live if warp.at >= 0]
            rounds += _NAP_ROUNDS if all(w.sleeps or w.waiting for w in live) else 1
            if live and rounds > _PATIENCE_ROUNDS:
                self._deliver(live, stuck=stuck)
                rounds = 0
            if watch.goes_round(live, self._changes() + self._delivered) and not self._pending:
                _stop_spinning(live)

    def _stretch(self, warp: Warp) -> int:
        quantum = _QUANTUM if self._random is None else self._random.randint(1, _QUANTUM)
        steps = self._execution.run(warp, quantum)
        self._left -= steps
        self._on_steps(steps)
        if self._left < 0:
            warp.stop(Fault.STEP_BUDGET, "the launch goes on after its budget of instructions")
        return steps

    def _deliver(self, live: list[Warp], *, stuck: bool) -> None:
        if self._pending:
            self._delivered += 1
            self._pending.pop(0).complete()
            return
        if stuck and all(warp.waiting is not None for warp in live):
            _stop_stuck(live)


def _stop_spinning(warps: list[Warp]) -> None:
    """Report that warps go round for ever, at one that does not merely wait."""
    spinning = [warp for warp in warps if warp.waiting is None]
    if spinning:
        message = f"{len(spinning)} warps go round for ever: what they look at changes no more"
        spinning[0].stop(Fault.STEP_BUDGET, message, spinning[0].group)


def _stop_stuck(warps: list[Warp]) -> None:
    """Report that warps wait for ever, at one that waits for lanes of its own if there is one."""
    waits = [(warp, warp.waiting) for warp in warps if warp.waiting is not None]
    first, wait = min(waits, key=lambda item: item[1].fault is Fault.DEADLOCK)
    reasons = sorted({wait.reason for _, wait in waits})
    message = f"all {len(warps)} warps that have not exited wait: " + "; ".join(reasons[:4])
    if wait.fault is not Fault.DEADLOCK:
        message = wait.reason
    first.stop(wait.fault, message, first.group)
