"""Server mode: single calls at random gaps, each with the clocks and caches that it finds.

The gaps between the end of a call and the next are exponential, as between requests that come
independently. Which contestant is called is drawn at random, so that none follows itself only. A
call is timed on the GPU; the host queues it behind a short delay, so that its part is not in it.
"""

import dataclasses
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from l2tune.errors import InfrastructureError
from l2tune.measure import contestants, operands
from l2tune.measure.clock import DeviceClock
from l2tune.measure.contestants import Contestant
from l2tune.measure.libraries import AUTOTUNED, library_contestants
from l2tune.measure.peers import Peer, peer_contestant
from l2tune.measure.statistics import choose_and_report
from l2tune.runtime import worker as process
from l2tune.runtime.driver import KernelDied
from l2tune.runtime.worker import Worker, WorkerDied
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Interval, Verified
from l2tune.spec.roofline import floor_us

KERNEL = "kernel"
_WARM_UP_CALLS = 5
_FEWEST_CALLS, _MOST_CALLS = 30, 500
_OVERHEAD_US = 300.0  # of the host, around one call
_SPIN_S = 0.0003  # what a sleep may overrun
_TUNING_SHARE = 0.5
_TIME_LIMIT_S = 300.0
_TIME_LIMIT_FACTOR = 8.0


@dataclasses.dataclass(frozen=True)
class _Request:
    key: GemmKey
    kernel: Compiled
    cache_dir: Path
    peers: tuple[Peer, ...]
    gap_us: float
    budget_s: float
    seed: int


def server(
    worker: Worker,
    key: GemmKey,
    kernel: Verified,
    *,
    cache_dir: Path,
    peers: Sequence[Peer] = (),
    gap_us: float,
    budget_s: float,
    seed: int,
) -> dict[str, Interval]:
    """Time a kernel's calls at random gaps beside torch, cuBLASLt autotuned, and peers.

    Args:
        worker: Where.
        key: What is computed.
        kernel: What is timed.
        cache_dir: Where its cubins are.
        peers: What else is timed; known to be right.
        gap_us: Mean gap, microseconds.
        budget_s: Time to spend; autotuning cuBLASLt may take half as much again.
        seed: Decides operands, order and gaps.

    Returns:
        By name, `kernel` and the baselines that can be had here: median time of a call on the GPU.

    Raises:
        InfrastructureError: If the worker failed, or a contestant did.
    """
    request = _Request(key, kernel.compiled, cache_dir, tuple(peers), gap_us, budget_s, seed)
    limit_s = _TIME_LIMIT_S + _TIME_LIMIT_FACTOR * budget_s
    try:
        answer: dict[str, Interval] | str = worker.call(serve_here, request, timeout_s=limit_s)
    except WorkerDied as error:
        raise InfrastructureError(f"calls at random gaps, {key}: {error}") from error
    except InfrastructureError:
        worker.renew()  # whatever it was, it may have left a context that no longer works
        raise
    if isinstance(answer, str):
        raise InfrastructureError(f"calls at random gaps, {key}: {answer}")
    return answer


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


def serve_here(request: _Request) -> dict[str, Interval] | str:
    """Run in the worker: intervals by name, or what died."""
    key, rng = request.key, random.Random(request.seed)
    sets = operands.sized(key, seed=request.seed)
    clock = DeviceClock(key.flops, launches=1)
    running = "library"
    try:
        entrants = {entrant.name: entrant for entrant in _entrants(request, sets, clock)}
        samples: dict[str, list[float]] = {name: [] for name in entrants}
        calls = call_count(
            len(entrants), gap_us=request.gap_us, launch_us=floor_us(key), budget_s=request.budget_s
        )
        drawn = arrivals(
            list(entrants), calls=_WARM_UP_CALLS + calls, gap_us=request.gap_us, rng=rng
        )
        for running, gap_us in drawn:
            index = rng.randrange(sets.count)
            _pause(gap_us * 1e-6)
            samples[running].append(_call_us(entrants[running], index, clock))
    except KernelDied as died:
        process.retire_after_this_call(died)
        return f"{running} died: {died}"
    groups: dict[str, dict[str, list[float]]] = {}
    for name, times_us in samples.items():
        groups.setdefault(entrants[name].group, {})[name] = times_us[_WARM_UP_CALLS:]
    return {group: choose_and_report(variants)[1] for group, variants in groups.items()}


def _entrants(
    request: _Request, sets: operands.OperandSets, clock: DeviceClock
) -> list[Contestant]:
    libraries, _ = library_contestants(sets, clock, tuning_s=_TUNING_SHARE * request.budget_s)
    found = [
        contestants.kernel(request.kernel, sets, name=KERNEL, cache_dir=request.cache_dir),
        contestants.torch_matmul(sets),
        *(entrant for entrant in libraries if entrant.group == AUTOTUNED),
        *(peer_contestant(peer, sets)[0] for peer in request.peers),
    ]
    torch.cuda.synchronize()
    return found


def _call_us(entrant: Contestant, index: int, clock: DeviceClock) -> float:
    return clock.call_us(lambda stream: entrant.launch(index, stream), what=entrant.name)


def _pause(gap_s: float) -> None:
    """Wait on the host; the last part awake, as a sleep ends late."""
    end = time.perf_counter() + gap_s
    if gap_s > _SPIN_S:
        time.sleep(gap_s - _SPIN_S)
    while time.perf_counter() < end:
        pass
