"""tune(key): from a matrix product to the fastest kernel proven correct for it, on one page.

generate -> flatten -> screen, contract -> compile -> quick check, rough time -> emulator, gate ->
time -> admit -> store. `evaluate` takes one kernel file the same way; the tuner, the reward of a
model in training and the tests all call these two. `estimate` is `tune` on a machine without a GPU:
a model stands where the clock is. `recheck` is `evaluate`, quick, for a kernel that was proven on
another machine. This is the only place that wires the stages of `l2tune.stages`.
"""

import datetime
from collections.abc import Iterable
from typing import Any

from l2tune import admit, dispatch, generate, measure, settings
from l2tune.errors import HeaderError, UnsupportedProblemError
from l2tune.runtime.versions import tools
from l2tune.runtime.worker import NO_GPU
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import (
    Admitted,
    Compiled,
    Declined,
    Estimated,
    Finding,
    Refuted,
    Timing,
    Verified,
)
from l2tune.spec.record import EstimatedRecord, Record
from l2tune.spec.roofline import floor_us
from l2tune.stages import (
    Bench,
    Failure,
    Progress,
    build,
    build_all,
    confirm,
    prove,
    rank,
    rank_by_model,
    silent,
    source_for,
)

__all__ = ["Bench", "Failure", "Progress", "estimate", "evaluate", "recheck", "tune"]

_FINALISTS = 2
_ESTIMATED_PER_FAMILY = 4
"""Instances of each seed that are compiled and emulated where nothing can be timed."""


def tune(
    key: GemmKey,
    *,
    bench: Bench | None = None,
    progress: Progress = silent,
    candidates: Iterable[KernelSource] | None = None,
) -> Record:
    """Search for the fastest correct kernel for `key` and store what was found.

    Args:
        key: What to tune.
        bench: Where to run; a worker on the current GPU by default.
        progress: Receives one line for each step.
        candidates: Kernels to choose among; instances of the seeds by default.

    Returns:
        The stored record: an `Admitted` kernel, or `Declined` where `torch.matmul` is the best.

    Raises:
        UnsupportedProblemError: If no seed admits the key.
        InfrastructureError: If the machine failed.
    """
    if bench is None:
        with Bench.open() as opened:
            return tune(key, bench=opened, progress=progress, candidates=candidates)
    sources = generate.candidates(key) if candidates is None else candidates
    compiled = build_all(sources, key, bench, progress)
    if not compiled:
        raise UnsupportedProblemError(f"{key.label}: no kernel admits it; torch.matmul serves it")
    ranked = rank(compiled, key, bench, progress)
    proven = _finalists(ranked, key, bench, progress)
    if not proven:
        raise UnsupportedProblemError(
            f"{key.label}: every candidate was refuted; see `l2tune show`"
        )
    progress(f"{key.label}: choosing: {len(proven)} proven kernels")
    chosen = _choose(proven, key, bench)
    progress(f"{key.label}: confirming: {chosen.compiled.source.name}, against the libraries")
    confirmed = confirm(chosen, key, bench, triton=_first_triton(proven))
    if isinstance(confirmed, Refuted):
        raise UnsupportedProblemError(f"{key.label}: refused after timing: {confirmed.detail}")
    return _store(key, admit.admit(confirmed), bench)


def estimate(
    key: GemmKey,
    *,
    bench: Bench | None = None,
    progress: Progress = silent,
    candidates: Iterable[KernelSource] | None = None,
) -> EstimatedRecord:
    """Search without a GPU: rank by the cost model, prove on the emulator, store as an estimate.

    Args:
        key: What to search for; its GPU is pretended.
        bench: Where to run; emulators alone by default.
        progress: Receives one line for each step.
        candidates: Kernels to choose among; instances of the seeds by default.

    Returns:
        The stored estimate. No record is made or changed.

    Raises:
        UnsupportedProblemError: If no seed admits the key, or none is proven and can be estimated.
        InfrastructureError: If the machine failed.
    """
    if bench is None:
        with Bench.open(device=NO_GPU) as opened:
            return estimate(key, bench=opened, progress=progress, candidates=candidates)
    sources = candidates
    if sources is None:
        sources = generate.candidates(key, per_family=_ESTIMATED_PER_FAMILY)
    compiled = build_all(sources, key, bench, progress)
    progress(f"{key.label}: counting: the instructions of {len(compiled)} kernels")
    for candidate, model in rank_by_model(compiled, key, bench):
        (proof,) = prove([candidate], key, bench, progress)
        if isinstance(proof, Verified):
            outcome = Estimated(
                verified=proof, estimate_us=model.us, terms_us=model.terms_us,
                floor_us=floor_us(key),
            )  # fmt: skip
            record = EstimatedRecord(key=key, outcome=outcome, **_provenance(candidate))
            bench.registry.put_estimate(record)
            return record
    raise UnsupportedProblemError(
        f"{key.label}: no kernel admits it and is proven on the emulator; see `l2tune show"
        " --refused`"
    )


def evaluate(text: str, key: GemmKey, *, bench: Bench) -> Admitted | Declined | Verified | Failure:
    """Take one kernel file through the whole pipeline for `key`; nothing is stored but its verdict.

    Args:
        text: A kernel file, tunables settled; `l2/*.cuh` includes are flattened into it.
        key: The problem it is judged on.
        bench: Where to run.

    Returns:
        The kernel's timing inside `Admitted` or `Declined`, or why it was refused. Without a GPU,
        where nothing can be timed, its proof.
    """
    try:
        source = source_for(text, key)
    except HeaderError as error:
        return Refuted(
            stage="contract", check="header", finding=Finding.MALFORMED, detail=str(error)
        )
    built = build(source, key, bench)
    if not isinstance(built, Compiled):
        return built
    (proof,) = prove([built], key, bench)
    if isinstance(proof, Refuted) or not bench.has_gpu:
        return proof
    timed = confirm(proof, key, bench, baselines="torch")
    return timed if isinstance(timed, Refuted) else admit.admit(timed)


def recheck(text: str, key: GemmKey, *, bench: Bench) -> Record | Failure:
    """Take a kernel that was proven and timed on another machine through fixed cases and the clock.

    The whole gate but for drawn cases, so no Hypothesis is needed; `torch.matmul` is the only
    baseline. A kernel that this GPU model has passed for another key is tried on the key alone.

    Args:
        text: A settled kernel file.
        key: What it was the best for, on this machine's GPU.
        bench: Where to run; its GPU is the key's.

    Returns:
        The stored record, or why the kernel was refused here.

    Raises:
        InfrastructureError: If the machine failed.
    """
    with settings.override(max_examples=0):
        outcome = evaluate(text, key, bench=bench)
    if isinstance(outcome, Admitted | Declined):
        return _store(key, outcome, bench)
    assert not isinstance(outcome, Verified)  # only without a GPU is there a proof and no time
    return outcome


def _finalists(
    ranked: list[Compiled], key: GemmKey, bench: Bench, progress: Progress
) -> list[Verified]:
    """The fastest kernels that pass the whole gate, and the fastest Triton one as a baseline."""
    proven: list[Verified] = []
    waiting = list(ranked)
    while waiting and len(proven) < _FINALISTS:
        batch, waiting = waiting[:_FINALISTS], waiting[_FINALISTS:]
        proven += [p for p in prove(batch, key, bench, progress) if isinstance(p, Verified)]
    triton = [c for c in waiting if c.source.backend == "triton"]
    while triton and _first_triton(proven) is None:
        batch, triton = triton[:1], triton[1:]
        proven += [p for p in prove(batch, key, bench, progress) if isinstance(p, Verified)]
    return proven


def _choose(proven: list[Verified], key: GemmKey, bench: Bench) -> Verified:
    """The fastest of the finalists; what it is reported at comes from another run."""
    timed = measure.measure(
        bench.worker, key, proven, cache_dir=bench.cache_dir, through=dispatch.Pinned,
        baselines="torch", triton=None, budget_s=bench.budget_s / 3, seed=bench.seed + 1,
    )  # fmt: skip
    times = [result.gpu.us if isinstance(result, Timing) else float("inf") for result in timed]
    return proven[times.index(min(times))]


def _first_triton(proven: list[Verified]) -> Verified | None:
    return next((v for v in proven if v.compiled.source.backend == "triton"), None)


def _store(key: GemmKey, outcome: Admitted | Declined, bench: Bench) -> Record:
    provenance = _provenance(outcome.timing.verified.compiled)
    record = Record(key=key, outcome=outcome, **provenance)
    bench.registry.put(record)
    return record


def _provenance(compiled: Compiled) -> dict[str, Any]:
    """Where a kernel comes from, and what was at work here and now."""
    return {
        "origin": compiled.source.header.origin,
        "tools": tools(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
