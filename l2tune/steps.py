"""What tuning a key takes, step by step: prepare, search, choose, settle.

Each step keeps what it found, so that another process can take the next one: `l2tune.pipeline.tune`
takes them in a row for one key, `l2tune.fleet` one after the other for many.
"""

import datetime
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from l2tune import admit, generate
from l2tune.errors import InfrastructureError, UnsupportedProblemError
from l2tune.runtime.versions import tools
from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Compiled, Declined, Refuted, Verified
from l2tune.spec.record import Record
from l2tune.stages import (
    Bench,
    Progress,
    build,
    build_all,
    confirm,
    is_sound,
    prove,
    rank,
    silent,
    source_for,
)
from l2tune.store import Chosen, Measured, Ranked
from l2tune.store.rough import shipped_rough

_TIMED = 32
"""Instances of the seeds that are timed roughly."""


def fitted(gpu: Gpu, *, bench: Bench) -> generate.Fitted:
    """The model of instances' times, fitted to what was timed on this GPU model.

    That is what the searches of the cache timed, and what the pack that ships for it did.
    """
    here = (
        (one.seed, one.values, ranked.key, one.us)
        for ranked in bench.searches.all_ranked(gpu)
        for one in ranked.found
    )
    return generate.fit(itertools.chain(shipped_rough(gpu), here))


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


def restore(chosen: Chosen, *, bench: Bench) -> None:
    """Compile a choice again where its machine code is not in the cache: a search may be carried.

    Raises:
        InfrastructureError: If what comes out is not what was proven.
    """
    for compiled in filter(None, (chosen.verified.compiled, chosen.triton)):
        if all(bench.artifacts.get(cubin) is not None for cubin in compiled.cubins):
            continue
        again = build(compiled.source, chosen.verified.key, bench)
        if not isinstance(again, Compiled) or again.cubins != compiled.cubins:
            raise InfrastructureError(
                f"{compiled.source.name} does not compile to what was proven; it is proven anew"
                " when the key is tuned again"
            )


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
    record = store(key, admit.admit(timing), bench)
    bench.searches.forget_choice(key)
    return record


def store(key: GemmKey, outcome: Admitted | Declined, bench: Bench) -> Record:
    """Make a verdict the record of its key, and store it.

    Raises:
        CacheError: If it cannot be stored.
    """
    made = provenance(outcome.timing.verified.compiled)
    record = Record(key=key, outcome=outcome, **made)
    bench.registry.put(record)
    return record


def provenance(compiled: Compiled) -> dict[str, Any]:
    """Where a kernel comes from, and what was at work here and now."""
    return {
        "origin": compiled.source.header.origin,
        "tools": tools(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
