"""tune(key): from a matrix product to the fastest kernel proven correct for it, on one page.

generate -> flatten -> screen, contract -> compile -> quick check, rough time -> emulator, gate ->
time -> admit -> store. `evaluate` takes one kernel file the same way; the tuner, the reward of a
model in training and the tests all call these two. This is the only place that wires the stages.
"""

import dataclasses
import datetime
import functools
import os
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from l2tune import admit, compile, dispatch, generate, measure, settings, verify  # noqa: A004
from l2tune.dispatch import native
from l2tune.errors import HeaderError, UnsupportedProblemError
from l2tune.runtime.versions import tools
from l2tune.runtime.worker import NO_GPU, Worker
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import (
    Admitted,
    CheckPassed,
    Compiled,
    CompileFailed,
    Declined,
    Finding,
    Refuted,
    Timing,
    Verified,
)
from l2tune.spec.record import Record
from l2tune.store import Artifacts, Registry

Failure = Refuted | CompileFailed
Progress = Callable[[str], None]

_FINALISTS = 2
_MAX_EMULATORS = 4


def _silent(_: str) -> None:
    """Progress that nobody watches."""


@dataclasses.dataclass
class Bench:
    """What tuning needs: a GPU's worker process and a cache. Use as a context manager.

    Attributes:
        worker: Runs candidates on the GPU.
        cache_dir: Records, sources and cubins.
        seed: What every random draw starts from.
        budget_s: Seconds of timing for each key, shared by its candidates.
        emulators: Processes without a GPU that run candidates on the emulator; none skips stage 4.
    """

    worker: Worker
    cache_dir: Path
    seed: int = 0
    budget_s: float = 12.0
    emulators: list[Worker] = dataclasses.field(default_factory=list)

    @classmethod
    def open(cls, *, device: int = 0, seed: int = 0, budget_s: float = 12.0) -> "Bench":
        """Start a worker on `device` and emulators beside it, with the cache of the settings."""
        cache_dir = settings.current().cache_dir
        native.build_if_missing()  # before the workers start: they time the calls that users make
        count = max(1, min(_MAX_EMULATORS, (os.cpu_count() or 1) // 2))
        emulators = [Worker(device=NO_GPU, spares=0) for _ in range(count)]
        return cls(Worker(device=device), cache_dir, seed, budget_s, emulators)

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self.worker, *self.emulators):
            worker.close()

    @functools.cached_property
    def artifacts(self) -> Artifacts:
        """The cache's cubins."""
        return Artifacts(self.cache_dir)

    @functools.cached_property
    def registry(self) -> Registry:
        """The cache's records."""
        return Registry(self.cache_dir)


def tune(key: GemmKey, *, bench: Bench | None = None, progress: Progress = _silent) -> Record:
    """Search for the fastest correct kernel for `key` and store what was found.

    Args:
        key: What to tune.
        bench: Where to run; a worker on the current GPU by default.
        progress: Receives one line for each step.

    Returns:
        The stored record: an `Admitted` kernel, or `Declined` where `torch.matmul` is the best.

    Raises:
        UnsupportedProblemError: If no seed admits the key.
        InfrastructureError: If the machine failed.
    """
    if bench is None:
        with Bench.open() as opened:
            return tune(key, bench=opened, progress=progress)
    compiled = build_all(generate.candidates(key), key, bench, progress)
    if not compiled:
        raise UnsupportedProblemError(
            f"{key.label}: no seed kernel admits it; torch.matmul serves it"
        )
    ranked = rank(compiled, key, bench, progress)
    proven = _finalists(ranked, key, bench, progress)
    if not proven:
        raise UnsupportedProblemError(
            f"{key.label}: every candidate was refuted; see `l2tune show`"
        )
    progress(f"{key.label}: choosing among {len(proven)} proven kernels")
    chosen = _choose(proven, key, bench)
    progress(f"{key.label}: confirming {chosen.compiled.source.name} against the libraries")
    confirmed = confirm(chosen, key, bench, triton=_first_triton(proven))
    if isinstance(confirmed, Refuted):
        raise UnsupportedProblemError(f"{key.label}: refused after timing: {confirmed.detail}")
    return _store(key, admit.admit(confirmed), bench)


def evaluate(text: str, key: GemmKey, *, bench: Bench) -> Admitted | Declined | Failure:
    """Take one kernel file through the whole pipeline for `key`; nothing is stored but its verdict.

    Args:
        text: A kernel file, tunables settled; `l2/*.cuh` includes are flattened into it.
        key: The problem it is judged on.
        bench: Where to run.

    Returns:
        The kernel's timing inside `Admitted` or `Declined`, or why it was refused.
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
    if isinstance(proof, Refuted):
        return proof
    timed = confirm(proof, key, bench, baselines="torch")
    return timed if isinstance(timed, Refuted) else admit.admit(timed)


def source_for(text: str, key: GemmKey) -> KernelSource:
    """A kernel file as a source for `key`'s target, dtype and layout, headers flattened.

    Raises:
        HeaderError: If the contract is malformed or does not offer them.
    """
    flat = compile.flatten(text, generate.include_dir())
    return KernelSource(text=flat, arch=key.gpu.arch or "sm_80", dtype=key.dtype, layout=key.layout)


def build(source: KernelSource, key: GemmKey, bench: Bench) -> Compiled | Failure:
    """Screen, check the contract, compile and check resources: all that needs no GPU."""
    known = bench.registry.refusal(key, source.digest)
    if known is not None:
        return known
    result: Compiled | Failure | None = verify.screen(source) or verify.check_contract(source, key)
    if result is None:
        result = compile.compile_kernel(source, bench.artifacts)
    if isinstance(result, Compiled):
        result = verify.check_resources(result, key) or result
    if not isinstance(result, Compiled):
        bench.registry.remember_refusal(key, source.digest, result)
    return result


def build_all(
    sources: Iterable[KernelSource], key: GemmKey, bench: Bench, progress: Progress = _silent
) -> list[Compiled]:
    """Build many sources, as many at a time as there are cores; failures are remembered."""
    flat = [source_for(source.text, key) for source in sources if compile.is_available(source)]
    progress(f"{key.label}: compiling {len(flat)} candidates")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda source: build(source, key, bench), flat))
    return [result for result in results if isinstance(result, Compiled)]


def rank(
    compiled: list[Compiled], key: GemmKey, bench: Bench, progress: Progress = _silent
) -> list[Compiled]:
    """Drop what fails the quick check, time the rest roughly, fastest first."""
    sound: list[Compiled] = []
    for index, candidate in enumerate(compiled):
        progress(f"{key.label}: quick check {index + 1}/{len(compiled)}")
        proof = verify.verify(
            bench.worker, candidate, key, cache_dir=bench.cache_dir, seed=bench.seed,
            checks=verify.QUICK_CHECKS,
        )  # fmt: skip
        if isinstance(proof, Refuted):
            bench.registry.remember_refusal(key, candidate.source.digest, proof)
        else:
            sound.append(candidate)
    progress(f"{key.label}: rough timing of {len(sound)} kernels")
    times = measure.quick_rank(
        bench.worker, key, sound, cache_dir=bench.cache_dir, budget_s=bench.budget_s / 3
    )
    order = sorted(range(len(sound)), key=times.__getitem__)
    return [sound[index] for index in order]


def prove(
    compiled: list[Compiled], key: GemmKey, bench: Bench, progress: Progress = _silent
) -> list[Verified | Refuted]:
    """Stages 4 to 7 for each kernel: the emulator, several at a time, then the GPU, one by one.

    What the emulator refuses is never launched; failures are remembered.
    """
    outcomes: list[Verified | Refuted] = []
    for candidate, emulated in zip(compiled, _emulate_all(compiled, key, bench), strict=True):
        progress(f"{key.label}: gate for {candidate.source.name}")
        outcome: Verified | Refuted
        if isinstance(emulated, Refuted):
            outcome = emulated
        else:
            outcome = verify.verify(
                bench.worker, candidate, key, cache_dir=bench.cache_dir, seed=bench.seed
            )
        if isinstance(outcome, Verified) and isinstance(emulated, CheckPassed):
            outcome = outcome.model_copy(update={"checks": (emulated, *outcome.checks)})
        if isinstance(outcome, Refuted):
            bench.registry.remember_refusal(key, candidate.source.digest, outcome)
        outcomes.append(outcome)
    return outcomes


def _emulate_all(
    compiled: list[Compiled], key: GemmKey, bench: Bench
) -> list[CheckPassed | Refuted | None]:
    if not bench.emulators:
        return [None] * len(compiled)
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in bench.emulators:
        idle.put(worker)

    def emulate(candidate: Compiled) -> CheckPassed | Refuted:
        worker = idle.get()
        try:
            return verify.emulate(
                worker, candidate, key, cache_dir=bench.cache_dir, seed=bench.seed
            )
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(len(bench.emulators)) as pool:
        return list(pool.map(emulate, compiled))


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


def confirm(
    chosen: Verified,
    key: GemmKey,
    bench: Bench,
    *,
    triton: Verified | None = None,
    baselines: measure.Baselines = "all",
) -> Timing | Refuted:
    """Time one kernel in a fresh process with fresh data, beside the baselines.

    Args:
        chosen: The kernel.
        key: The problem.
        bench: Where to run.
        triton: The best Triton kernel for the key, timed as a baseline.
        baselines: All libraries, or `torch.matmul` alone.

    Returns:
        The timing, or why the results on the timed buffers refute the kernel.
    """
    bench.worker.renew()
    (result,) = measure.measure(
        bench.worker, key, [chosen], cache_dir=bench.cache_dir, through=dispatch.Pinned,
        baselines=baselines, triton=triton, budget_s=bench.budget_s, seed=bench.seed + 2,
    )  # fmt: skip
    if isinstance(result, Refuted):
        bench.registry.remember_refusal(key, chosen.compiled.source.digest, result)
    return result


def _store(key: GemmKey, outcome: Admitted | Declined, bench: Bench) -> Record:
    source = outcome.timing.verified.compiled.source
    record = Record(
        key=key,
        outcome=outcome,
        origin=source.header.origin,
        tools=tools(),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    bench.registry.put(record)
    return record
