"""What the pipeline is made of: the bench it runs on, and each stage for one key.

A stage takes what the stage before it gave, runs it on the bench, and has the registry remember
what it refused. In which order they are called is `l2tune.pipeline`'s to say.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from l2tune import compile, dispatch, generate, measure, settings, verify  # noqa: A004
from l2tune.dispatch import native
from l2tune.errors import UnsupportedProblemError
from l2tune.runtime.pool import map_over
from l2tune.runtime.versions import tools
from l2tune.runtime.worker import NO_GPU, Worker
from l2tune.spec.gpu import Arch
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import Dtype, GemmKey, Layout
from l2tune.spec.outcome import CheckPassed, Compiled, CompileFailed, Refuted, Timing, Verified
from l2tune.store import Artifacts, KernelProof, Proofs, Registry, Searches

Failure = Refuted | CompileFailed
Progress = Callable[[str], None]
"""Takes a line when something begins: the key, what it is, and on what, with colons between."""

_MAX_EMULATORS = 4
_RANKING_S = 10.0
"""Enough for some sixty candidates that take 16 ms each; most keys need a fiftieth of it."""


def silent(_: str) -> None:
    """Progress that nobody watches."""


@dataclasses.dataclass
class Bench:
    """What tuning needs: a GPU's worker process and a cache. Use as a context manager.

    Attributes:
        worker: Runs candidates on the GPU; where there is none it is one of the emulators.
        cache_dir: Records, sources and cubins.
        seed: What every random draw starts from.
        budget_s: Seconds of timing for each key, shared by its candidates.
        emulators: Processes without a GPU that run candidates on the emulator; none skips stage 4.
        built: What was compiled, by digest of the source; benches of one process may share it.
    """

    worker: Worker
    cache_dir: Path
    seed: int = 0
    budget_s: float = 12.0
    emulators: list[Worker] = dataclasses.field(default_factory=list)
    built: dict[str, Compiled] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(
        cls, *, device: int = 0, seed: int = 0, budget_s: float = 12.0, emulators: int | None = None
    ) -> "Bench":
        """Start a worker on `device` and emulators beside it, with the cache of the settings.

        With `NO_GPU` for the device there are only emulators.

        Args:
            device: Index of the GPU.
            seed: What every random draw starts from.
            budget_s: Seconds of timing for each key.
            emulators: How many beside a GPU; by default as many as half the cores, at most four.
        """
        cache_dir = settings.current().cache_dir
        if device == NO_GPU:
            count = min(_MAX_EMULATORS, os.cpu_count() or 1)
            alone = [Worker(device=NO_GPU, spares=0) for _ in range(count)]
            return cls(alone[0], cache_dir, seed, budget_s, alone)
        native.build_if_missing()  # before the workers start: they time the calls that users make
        if emulators is None:
            emulators = max(1, min(_MAX_EMULATORS, (os.cpu_count() or 1) // 2))
        beside = [Worker(device=NO_GPU, spares=0) for _ in range(emulators)]
        return cls(Worker(device=device), cache_dir, seed, budget_s, beside)

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self.worker, *self.emulators):
            worker.close()

    @property
    def has_gpu(self) -> bool:
        """Whether anything can be timed."""
        return self.worker not in self.emulators

    @functools.cached_property
    def artifacts(self) -> Artifacts:
        """The cache's cubins."""
        return Artifacts(self.cache_dir)

    @functools.cached_property
    def proofs(self) -> Proofs:
        """What kernels have shown on a GPU, for any key."""
        return Proofs(self.cache_dir)

    @functools.cached_property
    def searches(self) -> Searches:
        """How far searches have come."""
        return Searches(self.cache_dir)

    @functools.cached_property
    def registry(self) -> Registry:
        """The cache's records."""
        return Registry(self.cache_dir)


def source_for(text: str, key: GemmKey) -> KernelSource:
    """A kernel file as a source for `key`'s target, dtype and layout, headers flattened.

    Raises:
        HeaderError: If the contract is malformed or does not offer them.
    """
    return _flattened(text, key.gpu.arch or "sm_80", key.dtype, key.layout)


@functools.lru_cache(maxsize=4096)  # one instance serves many keys
def _flattened(text: str, arch: Arch, dtype: Dtype, layout: Layout) -> KernelSource:
    flat = compile.flatten(text, generate.include_dir())
    return KernelSource(text=flat, arch=arch, dtype=dtype, layout=layout)


def build(source: KernelSource, key: GemmKey, bench: Bench) -> Compiled | Failure:
    """`compile_for`, unless the kernel was refused before; a refusal is remembered."""
    known = bench.registry.refusal(key, source.digest)
    if known is not None:
        return known
    result: Compiled | Failure
    compiled = bench.built.get(source.digest)
    if compiled is None:
        result = compile_for(source, key, bench.artifacts)
    else:  # the text is as it was; the key is another
        refuted = verify.check_contract(source, key) or verify.check_resources(compiled, key)
        result = refuted or compiled
    if isinstance(result, Compiled):
        bench.built[source.digest] = result
    else:
        bench.registry.remember_refusal(key, source.digest, result)
    return result


def compile_for(source: KernelSource, key: GemmKey, artifacts: Artifacts) -> Compiled | Failure:
    """Screen, check the contract, compile and check resources: all that needs no GPU."""
    refuted = verify.screen(source) or verify.check_contract(source, key)
    if refuted is not None:
        return refuted
    compiled = compile.compile_kernel(source, artifacts)
    if not isinstance(compiled, Compiled):
        return compiled
    return verify.check_resources(compiled, key) or compiled


def build_all(
    sources: Iterable[KernelSource], key: GemmKey, bench: Bench, progress: Progress = silent
) -> list[Compiled]:
    """Build many sources, as many at a time as there are cores; failures are remembered."""
    flat = [source_for(source.text, key) for source in sources if compile.is_available(source)]
    progress(f"{key.label}: compiling: {len(flat)} candidates")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda source: build(source, key, bench), flat))
    return [result for result in results if isinstance(result, Compiled)]


def rank(
    compiled: list[Compiled], key: GemmKey, bench: Bench, progress: Progress = silent
) -> tuple[list[tuple[Compiled, float]], float]:
    """Time kernels roughly.

    Returns:
        What could be timed with its microseconds, the fastest first; and those of `torch.matmul`.
    """
    progress(f"{key.label}: rough timing: {len(compiled)} kernels")
    rough = measure.quick_rank(
        bench.worker, key, compiled, cache_dir=bench.cache_dir, budget_s=_RANKING_S
    )
    timed = [pair for pair in zip(compiled, rough.times_us, strict=True) if math.isfinite(pair[1])]
    return sorted(timed, key=lambda pair: pair[1]), rough.torch_us


def is_sound(candidate: Compiled, key: GemmKey, bench: Bench, progress: Progress = silent) -> bool:
    """Whether a kernel passes the quick check; a failure is remembered."""
    progress(f"{key.label}: quick check: {candidate.source.name}")
    proof = verify.verify(
        bench.worker, candidate, key, cache_dir=bench.cache_dir, seed=bench.seed,
        checks=verify.QUICK_CHECKS,
    )  # fmt: skip
    if isinstance(proof, Refuted):
        bench.registry.remember_refusal(key, candidate.source.digest, proof)
    return isinstance(proof, Verified)


def prove(
    compiled: list[Compiled], key: GemmKey, bench: Bench, progress: Progress = silent
) -> list[Verified | Refuted]:
    """Stages 4 to 7 for each kernel: the emulator, several at a time, then the GPU, one by one.

    What the emulator refuses is never launched; failures are remembered. A kernel that this GPU
    model has proven for another key is tried only on what hangs on the key. Without a GPU the whole
    gate runs on the emulator, and no such proof is kept.

    Raises:
        UnsupportedProblemError: If there is no GPU, and the emulator does not know an instruction.
    """
    known = [_known_proof(candidate, key, bench) for candidate in compiled]
    new = [c for c, proof in zip(compiled, known, strict=True) if proof is None]
    progress(f"{key.label}: emulator: {len(new)} kernels")
    emulated = iter(_emulate_all(new, key, bench))
    outcomes: list[Verified | Refuted] = []
    for candidate, proof in zip(compiled, known, strict=True):
        progress(f"{key.label}: gate: {candidate.source.name}")
        if proof is None:
            outcome = _prove_kernel(candidate, key, bench, next(emulated))
        else:
            outcome = _after(proof, _verify(candidate, key, bench, checks=verify.KEY_CHECKS))
        if isinstance(outcome, Refuted):
            bench.registry.remember_refusal(key, candidate.source.digest, outcome)
        outcomes.append(outcome)
    return outcomes


def _known_proof(candidate: Compiled, key: GemmKey, bench: Bench) -> tuple[CheckPassed, ...] | None:
    if not bench.has_gpu:
        return None
    examples = settings.current().max_examples
    return bench.proofs.get(candidate, key.gpu, tools=tools(), max_examples=examples)


def _prove_kernel(
    candidate: Compiled, key: GemmKey, bench: Bench, emulated: CheckPassed | Refuted | None
) -> Verified | Refuted:
    """The whole gate after the emulator's stage; what holds for any key is kept."""
    if isinstance(emulated, Refuted):
        return emulated
    if emulated is not None and not emulated.examples and not bench.has_gpu:
        raise UnsupportedProblemError(f"{candidate.source.name}: {emulated.note}")
    outcome = _after((emulated,) if emulated else (), _verify(candidate, key, bench))
    if isinstance(outcome, Verified) and bench.has_gpu:
        lasting = tuple(c for c in outcome.checks if c.check not in verify.KEY_CHECKS)
        proof = KernelProof(
            checks=lasting, tools=tools(), max_examples=settings.current().max_examples
        )
        bench.proofs.put(candidate, key.gpu, proof)
    return outcome


def _verify(
    candidate: Compiled, key: GemmKey, bench: Bench, *, checks: tuple[str, ...] | None = None
) -> Verified | Refuted:
    return verify.verify(
        bench.worker, candidate, key, cache_dir=bench.cache_dir, seed=bench.seed, checks=checks
    )


def _after(earlier: tuple[CheckPassed, ...], outcome: Verified | Refuted) -> Verified | Refuted:
    """The outcome with the checks that were passed before it."""
    if isinstance(outcome, Refuted):
        return outcome
    return outcome.model_copy(update={"checks": (*earlier, *outcome.checks)})


def _emulate_all(
    compiled: list[Compiled], key: GemmKey, bench: Bench
) -> list[CheckPassed | Refuted | None]:
    if not bench.emulators:
        return [None] * len(compiled)
    return map_over(
        bench.emulators,
        lambda worker, candidate: verify.emulate(
            worker, candidate, key, cache_dir=bench.cache_dir, seed=bench.seed
        ),
        compiled,
    )


def rank_by_model(
    compiled: list[Compiled], key: GemmKey, bench: Bench
) -> list[tuple[Compiled, measure.Estimate]]:
    """What the emulator can count, with its estimate, the fastest first."""
    counted = map_over(
        bench.emulators,
        lambda worker, candidate: measure.count(worker, candidate, key, cache_dir=bench.cache_dir),
        compiled,
    )
    pairs = [
        (candidate, measure.estimate(candidate, key, work))
        for candidate, work in zip(compiled, counted, strict=True)
        if work is not None
    ]
    return sorted(pairs, key=lambda pair: pair[1].us)


def confirm(
    chosen: Verified,
    key: GemmKey,
    bench: Bench,
    *,
    triton: Compiled | None = None,
    baselines: measure.Baselines = "all",
    peers: Sequence[measure.Peer] = (),
    gap_us: float | None = None,
) -> Timing | Refuted:
    """Time one kernel with fresh data beside the baselines.

    Args:
        chosen: The kernel.
        key: The problem.
        bench: Where to run: in a process that had no part in choosing the kernel.
        triton: The best Triton kernel for the key, timed as a baseline.
        baselines: All libraries, or `torch.matmul` alone.
        peers: Further baselines, known to be right; for all libraries.
        gap_us: Mean gap of single calls at random, microseconds; None times none.

    Returns:
        The timing, or why the results on the timed buffers refute the kernel.
    """
    (result,) = measure.measure(
        bench.worker, key, [chosen], cache_dir=bench.cache_dir, through=dispatch.Pinned,
        baselines=baselines, triton=triton, budget_s=bench.budget_s, seed=bench.seed + 2,
        peers=peers, gap_us=gap_us,
    )  # fmt: skip
    if isinstance(result, Refuted):
        bench.registry.remember_refusal(key, chosen.compiled.source.digest, result)
    return result
