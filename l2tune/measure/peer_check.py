"""Whether a peer's kernel computes the product, before anything is compared with it.

The bound is the gate's, with sums in float32; its adversarial cases are not tried.
"""

import random
from collections.abc import Sequence

import torch

from l2tune.measure import operands
from l2tune.measure.clock import DeviceClock
from l2tune.measure.operands import OperandSets
from l2tune.measure.peers import Peer, PeerFailedError, peer_contestant
from l2tune.measure.rounds import Rounds
from l2tune.runtime import worker as process
from l2tune.runtime.driver import KernelDied, LaunchRefusedError
from l2tune.runtime.reference import error_ratio
from l2tune.runtime.worker import Worker, WorkerDied
from l2tune.spec.key import GemmKey

_CHECKED_SETS = 2
_CHECK_TIMEOUT_S = 300.0


def check_peer(worker: Worker, key: GemmKey, peer: Peer, *, seed: int) -> str | None:
    """Find out in a process of the worker whether a peer's results are inside the error bound.

    Returns:
        What is wrong with it, as a sentence's end; None if its results are right.
    """
    try:
        fault: str | None = worker.call(check_here, key, peer, seed, timeout_s=_CHECK_TIMEOUT_S)
    except WorkerDied as error:
        return f"it ended its process: {error}"
    return fault


def check_here(key: GemmKey, peer: Peer, seed: int) -> str | None:
    """Run in the worker: launch a peer as it is timed, from a graph, into poisoned results."""
    sets = operands.build(key, count=_CHECKED_SETS, seed=seed)
    clock = DeviceClock(key.flops, launches=sets.count)
    rounds = Rounds(clock, sets, paired=False, rng=random.Random(seed))
    try:
        contestant, result = peer_contestant(peer, sets)
        rounds.enter(contestant)
        torch.cuda.synchronize()  # whatever it launched on another stream
        with torch.cuda.stream(clock.stream):
            results = [result(index) for index in range(sets.count)]
            fault = wrong_form(results, sets.c)
            if fault is not None:
                return fault
            for made in results:
                made.fill_(operands.POISON)
        rounds.replay_again(peer.name)
    except KernelDied as died:
        process.retire_after_this_call(died)
        return f"it died: {died}"
    except (PeerFailedError, LaunchRefusedError, RuntimeError) as error:
        process.retire_after_this_call(error)  # it may have left a capture behind
        return f"it cannot run: {error}"
    with torch.cuda.stream(clock.stream):
        return wrong_values(results, sets)


def wrong_form(results: Sequence[object], wanted: Sequence[torch.Tensor]) -> str | None:
    """What keeps results from being products at all: no tensor, or another shape or dtype."""
    for made, like in zip(results, wanted, strict=True):
        if not isinstance(made, torch.Tensor):
            return f"it returned {type(made).__name__}, needed a tensor"
        if (made.shape, made.dtype) != (like.shape, like.dtype):
            return (
                f"it returned {list(made.shape)} of {made.dtype}, needed {list(like.shape)} of"
                f" {like.dtype}"
            )
    return None


def wrong_values(results: Sequence[torch.Tensor], sets: OperandSets) -> str | None:
    """What is wrong with the values of results, or with the inputs after it."""
    if not sets.unchanged():
        return "it changed a or b"
    ratios = [
        float(error_ratio(a, b, c, acc=sets.key.acc).item())
        for a, b, c in zip(sets.a, sets.b, results, strict=True)
    ]
    if max(ratios) <= 1.0:
        return None
    if any(bool(made.isnan().all()) for made in results):
        return "it left a result unwritten; it must launch on torch's current stream"
    return f"a result is {max(ratios):.3g} times its error bound off"
