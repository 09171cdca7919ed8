"""The gate: everything a kernel must pass before it may run for a user, cheapest first.

`screen` and `check_contract` need only the file, `check_resources` its machine code, and `verify` a
worker process: with a GPU, or without one, where the same checks run on the emulator. The first
failure ends it.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from l2tune import settings
from l2tune.errors import ExpressionError, InfrastructureError
from l2tune.runtime.driver import KernelDied, LaunchRefusedError
from l2tune.runtime.executable import Executable
from l2tune.runtime.processor import CudaProcessor
from l2tune.runtime.worker import NO_GPU, Worker, WorkerDied, report, retire_after_this_call
from l2tune.spec import geometry
from l2tune.spec.geometry import LaunchGeometry
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import (
    KEY_CHECKS,
    CheckPassed,
    Compiled,
    Finding,
    KernelResources,
    Refuted,
    Verified,
)
from l2tune.store.artifacts import Artifacts
from l2tune.verify.case import Case
from l2tune.verify.checks import CHECKS
from l2tune.verify.emulated import EmulatedBench, time_limit_s
from l2tune.verify.plan import Plan, plan_for
from l2tune.verify.screen import screen as screen
from l2tune.verify.shrink import shrunk
from l2tune.verify.trial import Bench, KernelFailed

_GATE_TIMEOUT_S = 300.0
_EMULATED_EXAMPLES = 8
_SHRINKING = 1 / 6
"""Share of the emulator's time that may go into shrinking a failure."""
_MAX_CLUSTER = 8
_MAX_THREADS, _REGISTERS = 1024, 65536
"""Of a portable cluster, and of a block: CUDA C++ Programming Guide, compute capabilities."""
QUICK_CHECKS = ("smoke", "rerun")
"""What a candidate must pass before the search may time it."""
KERNEL_CHECKS = (
    "rerun", "integers", "magnitudes", "accumulator", "values", "nonfinite", "repeat",
    "dependent_launch",
)  # fmt: skip
"""The proof of a kernel on a GPU: over all that its contract admits, whatever the key."""


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


@dataclasses.dataclass(frozen=True)
class Request:
    """What `verify` sends to the worker.

    Attributes:
        compiled: The kernel.
        key: What it is proven for.
        cache_dir: Where its cubins and PTX are.
        seed: What every draw starts from.
        checks: Names of the checks to run; None for all.
        max_examples: Hypothesis examples for each property.
        emulated: Whether the emulator runs it, not a GPU.
        budget_s: After this many seconds a check begins no case but its first.
    """

    compiled: Compiled
    key: GemmKey
    cache_dir: Path
    seed: int
    checks: tuple[str, ...] | None
    max_examples: int
    emulated: bool = False
    budget_s: float = math.inf


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
        worker: Where it runs: on its GPU, or on the emulator if it was made with `device=NO_GPU`.
            There problems are small, the key's own is scaled down where it is not, and cases are
            left out when the time of the settings is spent; a check's note says so.
        compiled: The kernel.
        key: Its shape is tried at full size; the contract's other shapes are drawn.
        cache_dir: Where its cubins are.
        seed: What every draw starts from.
        checks: Names of the checks to run; all of them by default.
        progress: Receives the name of each check as it starts.

    Returns:
        The proof, or the first failure with its smallest case.

    Raises:
        InfrastructureError: If the machine failed, or the emulator cannot run the kernel, which the
            note of `emulate` says before; nothing is said of the kernel then.
    """
    if (refuted := check_resources(compiled, key)) is not None:
        return refuted
    started = [checks[0] if checks else "smoke"]

    def note(name: Any) -> None:
        started.append(name)
        if progress is not None:
            progress(name)

    request = _request(worker, compiled, key, cache_dir, seed, checks)
    limit_s = time_limit_s(request.budget_s) if request.emulated else _GATE_TIMEOUT_S
    try:
        outcome = worker.call(verify_here, request, timeout_s=limit_s, progress=note)
    except WorkerDied as death:
        if request.emulated and not death.timed_out:
            raise InfrastructureError(str(death)) from death
        finding = Finding.HANG if death.timed_out else Finding.FAULT
        return Refuted(stage="sandbox", check=started[-1], finding=finding, detail=str(death))
    if isinstance(outcome, Refuted):
        return outcome
    return Verified(key=key, compiled=compiled, checks=outcome)


def _request(
    worker: Worker,
    compiled: Compiled,
    key: GemmKey,
    cache_dir: Path,
    seed: int,
    checks: tuple[str, ...] | None,
) -> Request:
    found = settings.current()
    request = Request(compiled, key, cache_dir, seed, checks, found.max_examples)
    if worker.device != NO_GPU:
        return request
    return dataclasses.replace(
        request, max_examples=min(found.max_examples, _EMULATED_EXAMPLES), emulated=True,
        budget_s=found.emulated_gate_budget_s,
    )  # fmt: skip


def verify_here(request: Request) -> tuple[CheckPassed, ...] | Refuted:
    """Run the checks in this process; what `verify` sends to the worker."""
    try:
        bench = _open(request)
    except LaunchRefusedError as error:
        return _resources(Finding.LAUNCH_REFUSED, str(error))
    plan = plan_for(
        bench, request.key.problem(), seed=request.seed, max_examples=request.max_examples
    )
    wanted = [c for c in CHECKS if request.checks is None or c[1] in request.checks]
    passed: list[CheckPassed] = []
    end = time.monotonic() + request.budget_s
    for index, (stage, name, check) in enumerate(wanted):
        report(name)
        now = time.monotonic()
        bench.begin_check(deadline=now + (end - now) / (len(wanted) - index))
        try:
            check(bench, plan)
        except KernelFailed as failure:
            found = _smallest(bench, failure, request)
            return _refuted(stage, name, found.finding, str(found), found.case)
        except KernelDied as death:
            retire_after_this_call(death)
            finding = Finding.HANG if death.hung else Finding.FAULT
            return _refuted(stage, name, finding, str(death), bench.case)
        passed.append(_passed(name, bench, plan))
    return tuple(passed)


def _open(request: Request) -> Bench:
    """The kernel on the processor that is asked for.

    Raises:
        LaunchRefusedError: If the driver does not load it.
        InfrastructureError: If its machine code or PTX is not in the cache.
    """
    compiled, key = request.compiled, request.key
    if request.emulated:
        return EmulatedBench.open(compiled, key, request.cache_dir)
    executable = Executable(compiled, Artifacts(request.cache_dir))
    return Bench(CudaProcessor(executable), key.gpu, settings.current().launch_timeout_s)


def _smallest(bench: Bench, failure: KernelFailed, request: Request) -> KernelFailed:
    if not request.emulated:
        return failure
    bench.begin_check(deadline=time.monotonic() + _SHRINKING * request.budget_s)
    return shrunk(bench, failure)


def _refuted(stage: str, check: str, finding: Finding, detail: str, case: Case | None) -> Refuted:
    data = case.as_data() if case else {}
    return Refuted.model_validate(
        {"stage": stage, "check": check, "finding": finding, "detail": detail, "case": data}
    )


def _passed(name: str, bench: Bench, plan: Plan) -> CheckPassed:
    notes = [plan.note] if plan.note and name in KEY_CHECKS else []
    notes += ["no time for all of its cases"] if bench.cut_short else []
    return CheckPassed(
        check=name, examples=bench.examples, seed=plan.seed, worst_ratio=bench.worst_ratio,
        note="; ".join(notes),
    )  # fmt: skip
