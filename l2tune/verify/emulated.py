"""Stage 4: a candidate runs on the emulator before it may touch a GPU.

A few small problems that its contract admits, chosen so that every path of a tiled kernel is taken:
one tile alone, ragged tails in every dimension, fewer and more steps of k than pipeline stages,
more tiles than multiprocessors, batches, padded rows. What a GPU forgives (a race, a read past the
end, a missing fence) is found here, with the line that does it.

`EmulatedBench` runs the later stages as well, where there is no GPU.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from l2tune import settings
from l2tune.errors import InfrastructureError
from l2tune.runtime.emulator.findings import EmulationStopped, Fault
from l2tune.runtime.emulator.processor import EmulatedProcessor
from l2tune.runtime.emulator.program import UnsupportedInstructionError
from l2tune.runtime.emulator.tokens import PtxSyntaxError
from l2tune.runtime.processor import Bound
from l2tune.runtime.worker import Worker, WorkerDied, report
from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import CheckPassed, Compiled, Finding, Refuted
from l2tune.store.artifacts import Artifacts
from l2tune.verify.admitted import repair, tile_of
from l2tune.verify.arena import Arena
from l2tune.verify.case import Case, case_of
from l2tune.verify.repetition import LONG_SUM, VALUES, run_again
from l2tune.verify.trial import Bench, KernelFailed

_SMALL_FLOPS = 1 << 22
"""A key below this is emulated at its own size too."""
_FEW_SMS = 3
"""Multiprocessors of the pretended GPU, so that small problems take many waves."""
_MOST_PRODUCTS, _MOST_TILES = 1 << 17, 4
"""How large a case of the later stages may be: half a second without tensor cores, or a few
tiles of a kernel that has large ones, and so tensor cores."""
_ORDERS = 3
_TIMEOUT_FACTOR, _TIMEOUT_EXTRA_S = 4.0, 60.0
_FINDINGS = {
    Fault.WRITE_TO_INPUT: Finding.INPUT_MODIFIED,
    Fault.STEP_BUDGET: Finding.HANG,
    Fault.TRAP: Finding.FAULT,
}


class EmulatedBench(Bench):
    """A kernel under test on the emulator, whose findings are failures of the kernel."""

    @classmethod
    def open(cls, compiled: Compiled, key: GemmKey, cache_dir: Path) -> "EmulatedBench":
        """Pretend to be the key's GPU with few multiprocessors.

        Raises:
            InfrastructureError: If the PTX is not in the cache.
        """
        return cls(
            EmulatedProcessor(compiled, Artifacts(cache_dir)),
            key.gpu.model_copy(update={"sms": _FEW_SMS}),
            settings.current().launch_timeout_s,
            most_products=max(_MOST_PRODUCTS, _MOST_TILES * math.prod(tile_of(compiled.source))),
        )

    def launch(
        self,
        bound: Bound,
        operands: Arena,
        scratch: torch.Tensor | None,
        case: Case,
        *,
        behind: bool = False,
    ) -> None:
        """Launch once.

        Raises:
            KernelFailed: If the launch data is impossible, or at the emulator's first finding.
        """
        try:
            super().launch(bound, operands, scratch, case, behind=behind)
        except EmulationStopped as stopped:
            fault = stopped.finding.fault
            found = _FINDINGS.get(fault) or Finding(fault.value)
            raise KernelFailed(found, str(stopped.finding), case) from stopped.with_traceback(None)


def emulated_cases(source: KernelSource, key: GemmKey, gpu: Gpu, *, seed: int) -> list[Case]:
    """The problems to emulate, the most telling first; only those that the contract admits."""
    values = source.tunables
    m, n, k = tile_of(source)
    deep = k * (values.get("STAGES", values.get("NUM_STAGES", 2)) + 1) + 9
    split = values.get("SPLIT", 1)
    own = case_of(key.problem(), source.layout, values="integers")
    wanted = [
        *([own] if key.flops <= _SMALL_FLOPS else []),
        Case(m, n, k, values="integers"),
        Case(m + 9, n + 9, deep, values="integers"),
        *([Case(9, 9, deep * split, values="integers")] if split > 1 else []),
        Case(m + 1, n, 192, batch=3, shared="b", pad=(8, 8, 8), values="integers"),
        Case(m, n, 96, values="accumulator"),
        Case(m, n, 2 * k, values="magnitudes"),
        Case(2 * m + 1, 2 * n + 1, k, values="normal"),
        LONG_SUM,
        Case(max(1, m - 7), n + 17, k + 24, values="nonfinite"),
        Case(m + 33, 8, 9, values="nonfinite"),
    ]
    admitted = [repair(case, source, gpu) for case in wanted]
    return [
        dataclasses.replace(case, seed=seed + index)
        for index, case in enumerate(admitted)
        if case is not None
    ]


def time_limit_s(budget_s: float) -> float:
    """When a process that should stop after `budget_s` counts as hung."""
    return _TIMEOUT_FACTOR * budget_s + _TIMEOUT_EXTRA_S


def emulate(
    worker: Worker,
    compiled: Compiled,
    key: GemmKey,
    *,
    cache_dir: Path,
    seed: int,
    progress: Callable[[Any], None] | None = None,
) -> CheckPassed | Refuted:
    """Run a compiled kernel on the emulator, in a process without a GPU.

    Args:
        worker: Made with `device=NO_GPU`.
        compiled: The kernel; its PTX comes from the very compilation of its cubin.
        key: Decides the GPU that is pretended.
        cache_dir: Where its PTX is.
        seed: What operands are drawn from.
        progress: Receives each case as it starts.

    Returns:
        How many cases it passed, or the first finding. Where the emulator does not know an
        instruction, or the contract admits no small problem, that says nothing of the kernel: no
        case then, and a note that says so.

    Raises:
        InfrastructureError: If the machine failed.
    """
    budget_s = settings.current().emulator_budget_s
    limit_s = time_limit_s(budget_s)
    try:
        answer: CheckPassed | Refuted = worker.call(
            emulate_here, (compiled, key, cache_dir, seed, budget_s), timeout_s=limit_s,
            progress=progress,
        )  # fmt: skip
    except WorkerDied as death:
        if not death.timed_out:  # the emulator runs no machine code that could end a process
            raise InfrastructureError(str(death)) from death
        detail = f"the emulator was not done after {limit_s:.0f} s: {death}"
        return Refuted(stage="emulator", check="cases", finding=Finding.HANG, detail=detail)
    return answer


def emulate_here(request: tuple[Compiled, GemmKey, Path, int, float]) -> CheckPassed | Refuted:
    """Run the cases in this process; what `emulate` sends to the worker."""
    compiled, key, cache_dir, seed, budget_s = request
    bench = EmulatedBench.open(compiled, key, cache_dir)
    bench.begin_check(deadline=time.monotonic() + budget_s)
    cases = emulated_cases(compiled.source, key, bench.gpu, seed=seed)
    note = "" if cases else "not emulated: the contract admits none of the small problems"
    try:
        for case in cases:
            if not bench.has_time():
                break
            report(case)
            bench.attempt(case)
            if case.values == VALUES:
                run_again(bench, case, runs=_ORDERS)
    except KernelFailed as failure:
        return Refuted(
            stage="emulator", check="cases", finding=failure.finding, detail=str(failure),
            case=failure.case.as_data(),
        )  # fmt: skip
    except (UnsupportedInstructionError, PtxSyntaxError) as error:
        return CheckPassed(check="emulator", examples=0, seed=seed, note=f"not emulated: {error}")
    return CheckPassed(
        check="emulator", examples=bench.examples, seed=seed, worst_ratio=bench.worst_ratio,
        note=note,
    )  # fmt: skip
