"""Server mode: single calls at random gaps, each with the clocks and caches that it finds.

The gaps between the end of a call and the next are exponential, as between requests that come
independently. Which contestant is called is drawn at random, so that none follows itself only. A
call is timed on the GPU; the host queues it behind a short delay, so that its part is not in it.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence

from l2tune.measure.clock import DeviceClock
from l2tune.measure.contestants import Contestant
from l2tune.measure.operands import OperandSets
from l2tune.measure.statistics import interval
from l2tune.spec.outcome import Interval
from l2tune.spec.roofline import floor_us

_WARM_UP_CALLS = 5
_FEWEST_CALLS, _MOST_CALLS = 30, 500
_OVERHEAD_US = 300.0  # of the host, around one call
_SPIN_S = 0.0003  # what a sleep may overrun


def call_times(
    entrants: Mapping[str, Contestant],
    sets: OperandSets,
    clock: DeviceClock,
    *,
    gap_us: float,
    budget_s: float,
    rng: random.Random,
) -> dict[str, Interval]:
    """Time calls of each contestant at random gaps.

    Args:
        entrants: By the name in the answer; each has been launched before.
        sets: What they multiply.
        clock: Times a call.
        gap_us: Mean gap, microseconds.
        budget_s: Time to spend.
        rng: Decides operands, order and gaps.

    Returns:
        Median time of a call on the GPU.

    Raises:
        KernelDied: If a contestant faulted or hung.
    """
    samples: dict[str, list[float]] = {name: [] for name in entrants}
    calls = call_count(
        len(entrants), gap_us=gap_us, launch_us=floor_us(sets.key), budget_s=budget_s
    )
    for name, pause_us in arrivals(
        list(entrants), calls=_WARM_UP_CALLS + calls, gap_us=gap_us, rng=rng
    ):
        index = rng.randrange(sets.count)
        _pause(pause_us * 1e-6)
        samples[name].append(_call_us(entrants[name], index, clock))
    return {name: interval(times_us[_WARM_UP_CALLS:]) for name, times_us in samples.items()}


def arrivals(
    names: Sequence[str], *, calls: int, gap_us: float, rng: random.Random
) -> Iterator[tuple[str, float]]:
    """Draw who is called and after which gap.

    Args:
        names: The contestants.
        calls: Calls of each.
        gap_us: Mean gap, microseconds.
        rng: Decides both.

    Yields:
        A name and a gap in microseconds; in every `len(names)` calls each name once.
    """
    order = list(names)
    for _ in range(calls):
        rng.shuffle(order)
        for name in order:
            yield name, rng.expovariate(1.0 / gap_us)


def call_count(contestants: int, *, gap_us: float, launch_us: float, budget_s: float) -> int:
    """How many calls of each contestant fit into the budget; between 30 and 500."""
    one_us = contestants * (gap_us + launch_us + _OVERHEAD_US)
    return max(_FEWEST_CALLS, min(_MOST_CALLS, int(budget_s * 1e6 / one_us)))


def _call_us(entrant: Contestant, index: int, clock: DeviceClock) -> float:
    return clock.call_us(lambda stream: entrant.launch(index, stream), what=entrant.name)


def _pause(gap_s: float) -> None:
    """Wait on the host; the last part awake, as a sleep ends late."""
    end = time.perf_counter() + gap_s
    if gap_s > _SPIN_S:
        time.sleep(gap_s - _SPIN_S)
    while time.perf_counter() < end:
        pass
