"""tune(key): from a matrix product to the fastest kernel proven correct for it, on one page.

generate -> flatten -> screen, contract -> compile -> rough time -> emulator, gate -> time ->
admit -> store. `evaluate` takes one kernel file the same way; the tuner, the reward of a model in
training and the tests all call these two. `estimate` is `tune` on a machine without a GPU:
a model stands where the clock is. `recheck` is `evaluate`, quick, for a kernel that was proven on
another machine. Only this, and the steps of a search (`l2tune.steps`), wire the stages of
`l2tune.stages`.
"""

from collections.abc import Iterable

from l2tune import admit, generate, settings
from l2tune.errors import HeaderError, UnsupportedProblemError
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
    rank_by_model,
    silent,
    source_for,
)
from l2tune.steps import choose, fitted, prepare, provenance, search, settle, store

__all__ = ["Bench", "Failure", "Progress", "estimate", "evaluate", "recheck", "tune"]

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

    `l2tune.fleet` takes many keys through the same three steps, one step after the other.

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
    model = fitted(key.gpu, bench=bench)
    compiled = prepare(key, bench=bench, model=model, offered=candidates, progress=progress)
    ranked = search(compiled, key, bench=bench, check=candidates is not None, progress=progress)
    chosen = choose(ranked, key, bench=bench, progress=progress)
    bench.worker.renew()
    return settle(chosen, bench=bench, progress=progress)


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
            record = EstimatedRecord(key=key, outcome=outcome, **provenance(candidate))
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
    bench.worker.renew()
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
        return store(key, outcome, bench)
    assert not isinstance(outcome, Verified)  # only without a GPU is there a proof and no time
    return outcome
