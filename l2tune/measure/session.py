"""One timing run: candidates and baselines interleaved in a worker process, then checked again.

All code on the host is ours and candidates are device code, so nothing of theirs can touch the
clock. What one run chose is for another, in a fresh process with fresh data, to report.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from l2tune.errors import InfrastructureError
from l2tune.measure.peers import Peer
from l2tune.measure.run import Baselines, Died, Request, Through, candidate_position, measure_here
from l2tune.runtime.worker import Worker, WorkerDied
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Finding, Refuted, Timing, Verified

_TIME_LIMIT_FACTOR = 8.0
_TIME_LIMIT_S = 300.0


def measure(  # noqa: D417  # the rest is described once, in `Request`
    worker: Worker,
    key: GemmKey,
    candidates: Sequence[Verified],
    *,
    cache_dir: Path,
    through: Through,
    baselines: Baselines,
    triton: Compiled | None,
    budget_s: float,
    seed: int,
    peers: Sequence[Peer] = (),
    gap_us: float | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[Timing | Refuted]:
    """Time candidates and baselines for a key in one run of the worker.

    `Request` says what the other arguments are.

    Args:
        worker: Where.
        key: What they compute.
        candidates: What is timed; one that faults ends the run, which starts anew without it.
        progress: Told the share of the rounds that is done, 0 to 1.

    Returns:
        One outcome for each candidate, in order. `Refuted` where it was wrong on the timed buffers,
        changed its inputs, faulted, was refused by the driver, or beat physics.

    Raises:
        InfrastructureError: If the worker failed, or a baseline did.
    """
    request = Request(
        key, tuple(candidates), cache_dir, through, baselines, triton, budget_s, seed, tuple(peers),
        gap_us,
    )  # fmt: skip
    return _outcomes(worker, request, progress)


def _outcomes(
    worker: Worker, request: Request, progress: Callable[[float], None] | None
) -> list[Timing | Refuted]:
    outcomes: dict[int, Timing | Refuted] = {}
    count = len(request.candidates)
    while waiting := [index for index in range(count) if index not in outcomes]:
        left = tuple(request.candidates[index] for index in waiting)
        answer = _run(worker, dataclasses.replace(request, candidates=left), progress)
        if isinstance(answer, Died):
            outcomes[waiting[_culprit(answer)]] = _fault(answer, request.seed)
        else:
            outcomes |= dict(zip(waiting, answer, strict=True))
    return [outcomes[index] for index in range(count)]


def _run(
    worker: Worker, request: Request, progress: Callable[[float], None] | None
) -> list[Timing | Refuted] | Died:
    limit_s = _TIME_LIMIT_S + _TIME_LIMIT_FACTOR * request.budget_s
    try:
        answer: list[Timing | Refuted] | Died = worker.call(
            measure_here, request, timeout_s=limit_s, progress=progress
        )
    except WorkerDied as error:
        raise InfrastructureError(f"measuring {request.key}: {error}") from error
    except InfrastructureError:
        worker.renew()  # whatever it was, it may have left a context that no longer works
        raise
    return answer


def _culprit(died: Died) -> int:
    position = candidate_position(died.name)
    if position is None:
        raise InfrastructureError(f"baseline {died.name!r} died while it was timed: {died.what}")
    return position


def _fault(died: Died, seed: int) -> Refuted:
    return Refuted(
        stage="time",
        check="while_timing",
        finding=Finding.HANG if died.hung else Finding.FAULT,
        detail=f"After it had passed the gate, back to back on rotating operands: {died.what}.",
        case={"seed": seed},
    )
