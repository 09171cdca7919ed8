"""The gate: everything a kernel must pass before it may run for a user, cheapest first.

`screen` and `check_contract` need only the file, `check_resources` its machine code, and `verify` a
worker process with a GPU. The first failure ends it.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from l2tune import settings
from l2tune.errors import ExpressionError
from l2tune.runtime.worker import Worker, WorkerDied
from l2tune.spec import geometry
from l2tune.spec.geometry import LaunchGeometry
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import CheckPassed, Compiled, Finding, KernelResources, Refuted, Verified
from l2tune.verify.screen import screen as screen

_GATE_TIMEOUT_S = 300.0
_MAX_CLUSTER = 8
_MAX_THREADS, _REGISTERS = 1024, 65536
"""Of a portable cluster, and of a block: CUDA C++ Programming Guide, compute capabilities."""
QUICK_CHECKS = ("smoke", "rerun")
"""What a candidate must pass before the search may time it."""


def check_contract(source: KernelSource, key: GemmKey) -> Refuted | None:
    """Whether the contract admits the key at all."""
    if source.serves(key):
        return None
    return Refuted(
        stage="contract",
        check="requires",
        finding=Finding.REQUIRES_REFUSED,
        detail=f"{source.name} for {source.arch} {source.dtype} {source.layout} acc {source.acc}"
        f" does not admit {key}",
    )


def check_resources(compiled: Compiled, key: GemmKey) -> Refuted | None:
    """Whether the machine code is free of mutable state and fits the GPU."""
    if compiled.writable_globals:
        names = ", ".join(compiled.writable_globals)
        return _resources(Finding.WRITABLE_GLOBAL, f"mutable file-scope state: {names}")
    for data in compiled.launches:
        if data.kernel not in compiled.resources:
            return _resources(Finding.MALFORMED, f"the file defines no kernel {data.kernel!r}")
    try:
        launches = geometry.launches(compiled, key.problem(), key.gpu)
    except (ValueError, ExpressionError) as error:
        return _resources(Finding.LAUNCH_REFUSED, str(error))
    for launch in launches:
        if excess := _excess(launch, compiled.resources[launch.kernel], key.gpu.smem_limit_bytes):
            return _resources(Finding.RESOURCES, f"{launch.kernel}: {excess}")
    return None


def _excess(launch: LaunchGeometry, used: KernelResources, limit_bytes: int) -> str:
    """What a launch asks for beyond what the GPU has, in words; empty if nothing."""
    if used.smem_static_bytes + launch.smem_bytes > limit_bytes:
        asked = f"{used.smem_static_bytes} + {launch.smem_bytes} bytes of shared memory"
        return f"{asked}, the GPU has {limit_bytes}"
    if math.prod(launch.cluster) > _MAX_CLUSTER:
        return f"cluster {launch.cluster}, at most {_MAX_CLUSTER} blocks are portable"
    threads = math.prod(launch.block)
    if not 0 < threads <= _MAX_THREADS or threads * used.registers > _REGISTERS:
        return f"{threads} threads with {used.registers} registers each"
    return ""


def _resources(finding: Finding, detail: str) -> Refuted:
    return Refuted(stage="compile", check="resources", finding=finding, detail=detail)


def verify(
    worker: Worker,
    compiled: Compiled,
    key: GemmKey,
    *,
    cache_dir: Path,
    seed: int,
    checks: tuple[str, ...] | None = None,
    progress: Callable[[Any], None] | None = None,
) -> Verified | Refuted:
    """Prove a compiled kernel for its contract and for `key`, or refuse it.

    Args:
        worker: Where it runs.
        compiled: The kernel.
        key: Its shape is tried at full size; the contract's other shapes are drawn.
        cache_dir: Where its cubins are.
        seed: What every draw starts from.
        checks: Names of the checks to run; all of them by default.
        progress: Receives the name of each check as it starts.

    Returns:
        The proof, or the first failure with its smallest case.

    Raises:
        InfrastructureError: If the machine failed; nothing is said of the kernel then.
    """
    if (refuted := check_resources(compiled, key)) is not None:
        return refuted
    started = ["smoke"]

    def note(name: Any) -> None:
        started.append(name)
        if progress is not None:
            progress(name)

    examples = settings.current().max_examples
    try:
        outcome = worker.call(
            verify_here,
            (compiled, key, cache_dir, seed, checks, examples),
            timeout_s=_GATE_TIMEOUT_S,
            progress=note,
        )
    except WorkerDied as death:
        finding = Finding.HANG if death.timed_out else Finding.FAULT
        return Refuted(stage="sandbox", check=started[-1], finding=finding, detail=str(death))
    if isinstance(outcome, Refuted):
        return outcome
    return Verified(key=key, compiled=compiled, checks=outcome)


def verify_here(
    request: tuple[Compiled, GemmKey, Path, int, tuple[str, ...] | None, int],
) -> tuple[CheckPassed, ...] | Refuted:
    """Run the checks in this process; what `verify` sends to the worker."""
    from l2tune.runtime.driver import KernelDied, LaunchRefusedError
    from l2tune.runtime.executable import Executable
    from l2tune.runtime.processor import CudaProcessor
    from l2tune.runtime.worker import report, retire_after_this_call
    from l2tune.store.artifacts import Artifacts
    from l2tune.verify.checks import CHECKS, plan_for
    from l2tune.verify.trial import Bench, KernelFailed

    compiled, key, cache_dir, seed, names, max_examples = request
    timeout_s = settings.current().launch_timeout_s
    try:
        executable = Executable(compiled, Artifacts(cache_dir))
    except LaunchRefusedError as error:
        return _resources(Finding.LAUNCH_REFUSED, str(error))
    bench = Bench(CudaProcessor(executable), key.gpu, timeout_s)
    plan = plan_for(bench, key.problem(), seed=seed, max_examples=max_examples)
    passed = []
    for stage, name, check in CHECKS:
        if names is not None and name not in names:
            continue
        report(name)
        bench.examples, bench.worst_ratio = 0, 0.0
        try:
            check(bench, plan)
        except KernelFailed as failure:
            return Refuted.model_validate(
                {"stage": stage, "check": name, "finding": failure.finding,
                 "detail": str(failure), "case": failure.case.as_data()}
            )  # fmt: skip
        except KernelDied as death:
            retire_after_this_call(death)
            finding = Finding.HANG if death.hung else Finding.FAULT
            case = bench.case.as_data() if bench.case else {}
            return Refuted.model_validate(
                {"stage": stage, "check": name, "finding": finding, "detail": str(death),
                 "case": case}
            )  # fmt: skip
        passed.append(
            CheckPassed(
                check=name, examples=bench.examples, seed=seed, worst_ratio=bench.worst_ratio
            )
        )
    return tuple(passed)
