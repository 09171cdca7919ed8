"""tune(key): from a matrix product to the fastest kernel proven correct for it, on one page.

generate -> flatten -> screen, contract -> compile -> rough time -> emulator, gate -> time ->
admit -> store. `evaluate` takes one kernel file the same way; the tuner, the reward of a model in
training and the tests all call these two. `estimate` is `tune` on a machine without a GPU:
a model stands where the clock is. `recheck` is `evaluate`, quick, for a kernel that was proven on
another machine. This is the only place that wires the stages of `l2tune.stages`.
"""

import datetime
import math
from collections.abc import Iterable, Iterator
from typing import Any

from l2tune import admit, generate, settings
from l2tune.errors import HeaderError, UnsupportedProblemError
from l2tune.runtime.versions import tools
from l2tune.runtime.worker import NO_GPU
from l2tune.spec.gpu import Gpu
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
    is_sound,
    prove,
    rank,
    rank_by_model,
    silent,
    source_for,
)
from l2tune.store import Chosen, Measured, Ranked
from l2tune.store.rough import shipped_rough

__all__ = [
    "Bench", "Failure", "Progress", "choose", "estimate", "evaluate", "fitted", "prepare",
    "recheck", "search", "searched", "settle", "tune",
]  # fmt: skip

_TIMED = 32
"""Instances of the seeds that are timed roughly."""
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


def fitted(gpu: Gpu, *, bench: Bench) -> generate.Fitted:
    """The model of instances' times, fitted to what was timed on this GPU model.

    That is what the searches of the cache timed, and what the pack that ships for it did.
    """
    here = (
        (one.seed, one.values, ranked.key, one.us)
        for ranked in bench.searches.all_ranked(gpu)
        for one in ranked.found
    )
    found = [*shipped_rough(gpu), *here]
    return generate.Fitted(
        (seed_id, values, key, us)
        for seed_id, measured, key, us in found
        if (values := generate.completed(seed_id, measured)) is not None
    )


def prepare(
    key: GemmKey,
    *,
    bench: Bench,
    model: generate.Fitted,
    offered: Iterable[KernelSource] | None = None,
    also: Iterable[KernelSource] = (),
    count: int = _TIMED,
    progress: Progress = silent,
) -> list[Compiled]:
    """Compile what is worth timing for a key; needs no GPU.

    Args:
        key: What to tune.
        bench: Where to compile.
        model: Says which instances of the seeds those are.
        offered: Kernels in the place of the seeds.
        also: Kernels besides.
        count: How many instances of the seeds.
        progress: Receives a line.

    Raises:
        UnsupportedProblemError: If no kernel admits the key.
    """
    sources = generate.shortlist(key, model, count=count) if offered is None else offered
    compiled = build_all([*sources, *also], key, bench, progress)
    if not compiled:
        raise UnsupportedProblemError(f"{key.label}: no kernel admits it; torch.matmul serves it")
    return list({found.source.digest: found for found in compiled}.values())


def search(
    compiled: list[Compiled],
    key: GemmKey,
    *,
    bench: Bench,
    check: bool = False,
    progress: Progress = silent,
) -> list[Compiled]:
    """Time kernels roughly; the fastest first. The times are kept.

    Args:
        compiled: Kernels that admit the key.
        key: What they compute.
        bench: Where to run.
        check: Whether a kernel that fails the quick check is dropped before; for files that are not
            ours. What is wrong with one of ours, the gate finds.
        progress: Receives one line for each step.

    Raises:
        InfrastructureError: If the machine failed.
    """
    if check:
        compiled = [found for found in compiled if is_sound(found, key, bench, progress)]
    timed, torch_us = rank(compiled, key, bench, progress)
    found = tuple(
        Measured(
            text=bench.artifacts.put(one.source.text.encode()), seed=one.source.header.id,
            values=one.source.tunables, us=us,
        )
        for one, us in timed
    )  # fmt: skip
    known_us = torch_us if math.isfinite(torch_us) else None
    bench.searches.put_ranked(
        Ranked(
            key=key, torch_us=known_us, found=found, tools=tools(), seeds=generate.seeds_digest()
        )
    )  # fmt: skip
    return [candidate for candidate, _ in timed]


def searched(ranked: Ranked, *, bench: Bench, first: str | None = None) -> Iterator[Compiled]:
    """What an earlier `search` found, the fastest first; each is built when asked for.

    Args:
        ranked: What it kept.
        bench: Where to build.
        first: SHA-256 of the text that comes before all others.
    """
    for found in sorted(ranked.found, key=lambda found: (found.text != first, found.us)):
        text = bench.artifacts.get(found.text)
        built = (
            None
            if text is None
            else build(source_for(text.decode(), ranked.key), ranked.key, bench)
        )
        if isinstance(built, Compiled):
            yield built


def choose(
    ranked: Iterable[Compiled], key: GemmKey, *, bench: Bench, progress: Progress = silent
) -> Chosen:
    """The fastest kernel that passes the whole gate, and the fastest right Triton kernel.

    Args:
        ranked: The fastest first.
        key: What they compute.
        bench: Where to run; nothing is timed.
        progress: Receives one line for each step.

    Returns:
        The choice, which is kept.

    Raises:
        UnsupportedProblemError: If every kernel was refuted.
        InfrastructureError: If the machine failed.
    """
    verified: Verified | None = None
    triton: Compiled | None = None
    for candidate in ranked:
        is_triton = candidate.source.backend == "triton"
        if verified is None:
            (proof,) = prove([candidate], key, bench, progress)
            if isinstance(proof, Verified):
                verified = proof
                triton = candidate if is_triton else triton
        elif triton is None and is_triton and is_sound(candidate, key, bench, progress):
            triton = candidate
        if verified is not None and triton is not None:
            break
    if verified is None:
        raise UnsupportedProblemError(
            f"{key.label}: every candidate was refuted; see `l2tune show`"
        )
    chosen = Chosen(verified=verified, triton=triton, tools=tools())
    bench.searches.put_chosen(chosen)
    return chosen


def settle(
    chosen: Chosen, *, bench: Bench, gap_us: float | None = None, progress: Progress = silent
) -> Record:
    """Time a choice beside every baseline, and store the verdict.

    Args:
        chosen: What `choose` found.
        bench: Where to run: in a process that had no part in choosing.
        gap_us: Mean gap of single calls at random, microseconds; None times none.
        progress: Receives a line.

    Raises:
        UnsupportedProblemError: If its results on the timed buffers refute the kernel.
        InfrastructureError: If the machine failed.
    """
    verified = chosen.verified
    key = verified.key
    progress(f"{key.label}: confirming: {verified.compiled.source.name}, against the libraries")
    timing = confirm(verified, key, bench, triton=chosen.triton, gap_us=gap_us)
    if isinstance(timing, Refuted):
        raise UnsupportedProblemError(f"{key.label}: refused after timing: {timing.detail}")
    return _store(key, admit.admit(timing), bench)


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
        return _store(key, outcome, bench)
    assert not isinstance(outcome, Verified)  # only without a GPU is there a proof and no time
    return outcome


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
