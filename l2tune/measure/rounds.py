"""Interleaved rounds: in each, every contestant's graph is replayed once, in random order.

Where a contestant overlaps its predecessor (programmatic dependent launch), back-to-back launches
would hide part of its time. Then all contestants, so that one run has one method, are timed behind
a small kernel that triggers nothing, and that kernel's own time is subtracted.
"""

import dataclasses
import random
import time
from collections.abc import Callable

import torch

from l2tune.measure.clock import DeviceClock
from l2tune.measure.contestants import Contestant
from l2tune.measure.operands import OperandSets
from l2tune.measure.statistics import paired_differences

MIN_ROUNDS, MAX_ROUNDS = 15, 30
_FEWEST_ROUNDS = 6  # where one contestant is so slow that 15 rounds would take several budgets
_OVERRUN = 3.0
_WARM_UP_S, _BRIEF_WARM_UP_S = 0.4, 0.1
"""An H200 under large products reaches its power limit within the one; small ones never do."""
_LARGE_FLOPS = 1 << 33
_SPACER = "spacer"
_SPACER_ELEMENTS = 1 << 21
"""Long enough that a graph of spacers alone is not held back by the rate of launches."""


@dataclasses.dataclass
class _Lap:
    """A contestant's graph and the times of its replays, microseconds each launch.

    The contestant stays with it: a graph does not keep loaded what it launches.
    """

    contestant: Contestant
    graph: torch.cuda.CUDAGraph
    samples_us: list[float] = dataclasses.field(default_factory=list)


def enough_rounds(done: int, *, elapsed_s: float, budget_s: float) -> bool:
    """Whether to stop after `done` rounds: at the budget if they are 15, and at 30 in any case."""
    if done >= MAX_ROUNDS:
        return True
    if elapsed_s > _OVERRUN * budget_s:
        return done >= _FEWEST_ROUNDS
    return elapsed_s > budget_s and done >= MIN_ROUNDS


class Rounds:
    """Contestants on shared operand sets.

    Attributes:
        running: Whose launches the GPU is working on; names the culprit of a fault.
        paired: Whether all are timed in pairs with a spacer.
    """

    def __init__(
        self, clock: DeviceClock, sets: OperandSets, *, paired: bool, rng: random.Random
    ) -> None:
        """Prepare; with `paired`, the spacer alone runs along as a contestant."""
        self.running = ""
        self.paired = paired
        self._clock, self._sets, self._rng = clock, sets, rng
        self._laps: dict[str, _Lap] = {}
        self._spacer = torch.zeros(_SPACER_ELEMENTS, device="cuda")
        torch.cuda.synchronize()
        if paired:
            self.enter(Contestant(_SPACER, _SPACER, lambda _index, _stream: None))

    def enter(self, contestant: Contestant) -> None:
        """Launch once, then capture a launch for each set.

        Raises:
            LaunchRefusedError: If the driver refuses the launch.
            KernelDied: If it faulted or hung.
        """
        self.running = contestant.name
        self._clock.run_once(lambda stream: contestant.launch(0, stream), what=contestant.name)

        def body(stream: int) -> None:
            for index in range(self._sets.count):
                if self.paired:
                    self._spacer.add_(1.0)
                contestant.launch(index, stream)

        self._laps[contestant.name] = _Lap(contestant, self._clock.capture(body))

    @property
    def names(self) -> set[str]:
        """Who has entered."""
        return set(self._laps) - {_SPACER}

    def warm_up(self) -> None:
        """Replay everything, once at least, until the GPU has reached its working temperature."""
        large = self._sets.key.flops >= _LARGE_FLOPS
        deadline = time.monotonic() + (_WARM_UP_S if large else _BRIEF_WARM_UP_S)
        while True:
            for lap in self._laps.values():
                self._replay_us(lap)
            if time.monotonic() > deadline:
                return

    def run(
        self,
        *,
        budget_s: float,
        during: Callable[[], None],
        progress: Callable[[float], None],
    ) -> int:
        """Time rounds until they are enough.

        Args:
            budget_s: Time to spend.
            during: Called once a round while the GPU is busy.
            progress: Told the share that is done, after each round.

        Returns:
            The number of rounds.

        Raises:
            KernelDied: If a kernel faulted or hung.
        """
        start, done = time.monotonic(), 0
        while not enough_rounds(done, elapsed_s=time.monotonic() - start, budget_s=budget_s):
            self.run_one(during)
            done += 1
            share = (time.monotonic() - start) / max(budget_s, 1e-9)
            progress(min(1.0, max(done / MAX_ROUNDS, share)))
        return done

    def run_one(self, during: Callable[[], None] | None = None) -> None:
        """Time one round.

        Raises:
            KernelDied: If a kernel faulted or hung.
        """
        order = list(self._laps.values())
        self._rng.shuffle(order)
        for position, lap in enumerate(order):
            lap.samples_us.append(self._replay_us(lap, during if position == 0 else None))

    def leave(self, name: str) -> None:
        """Forget a contestant, and all times so far."""
        del self._laps[name]
        for lap in self._laps.values():
            lap.samples_us.clear()

    def samples_us(self, name: str) -> list[float]:
        """Times of one launch of a contestant, round by round."""
        samples_us = self._laps[name].samples_us
        if not self.paired:
            return list(samples_us)
        return paired_differences(samples_us, self._laps[_SPACER].samples_us)

    def replay_again(self, name: str) -> None:
        """Replay a contestant's timed graph once more, so that the outputs are its own."""
        self._replay_us(self._laps[name])

    def _replay_us(self, lap: _Lap, during: Callable[[], None] | None = None) -> float:
        self.running = lap.contestant.name
        taken_us = self._clock.replay_us(
            lap.graph, prepare=self._sets.poison, what=self.running, during=during
        )
        return taken_us / self._sets.count
