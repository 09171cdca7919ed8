"""Stage 4: a candidate runs on the emulator before it may touch a GPU.

A few small problems that its contract admits, chosen so that every path of a tiled kernel is taken:
one tile alone, ragged tails in every dimension, fewer and more steps of k than pipeline stages,
more tiles than multiprocessors, batches, padded rows. What a GPU forgives (a race, a read past the
end, a missing fence) is found here, with the line that does it.
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from l2tune import settings
from l2tune.runtime.emulator.findings import EmulationStopped, Fault
from l2tune.runtime.emulator.processor import EmulatedProcessor
from l2tune.runtime.emulator.program import UnsupportedInstructionError
from l2tune.runtime.emulator.tokens import PtxSyntaxError
from l2tune.runtime.worker import Worker, WorkerDied, report
from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import CheckPassed, Compiled, Finding, Refuted
from l2tune.store.artifacts import Artifacts
from l2tune.verify.admitted import repair
from l2tune.verify.case import Case, case_of
from l2tune.verify.trial import Bench, KernelFailed

_SMALL_FLOPS = 1 << 22
"""A key below this is emulated at its own size too."""
_FEW_SMS = 3
"""Multiprocessors of the pretended GPU, so that small problems take many waves."""
_TIMEOUT_FACTOR, _TIMEOUT_EXTRA_S = 4.0, 60.0
_FINDINGS = {
    Fault.WRITE_TO_INPUT: Finding.INPUT_MODIFIED,
    Fault.STEP_BUDGET: Finding.HANG,
    Fault.TRAP: Finding.FAULT,
}


def emulated_cases(source: KernelSource, key: GemmKey, gpu: Gpu, *, seed: int) -> list[Case]:
    """The problems to emulate, the most telling first; only those that the contract admits."""
    values = source.tunables
    m = values.get("TILE_M", values.get("BLOCK_M", 32))
    n = values.get("TILE_N", values.get("BLOCK_N", 32))
    k = values.get("TILE_K", values.get("BLOCK_K", 16))
    deep = k * (values.get("STAGES", values.get("NUM_STAGES", 2)) + 1) + 9
    own = case_of(key.problem(), source.layout, values="integers")
    wanted = [
        *([own] if key.flops <= _SMALL_FLOPS else []),
        Case(m, n, k, values="integers"),
        Case(m + 9, n + 9, deep, values="integers"),
        Case(m + 1, n, 192, batch=3, shared="b", pad=(8, 8, 8), values="integers"),
        Case(m, n, 96, values="accumulator"),
        Case(m, n, 2 * k, values="magnitudes"),
        Case(2 * m + 1, 2 * n + 1, k, values="normal"),
        Case(m - 7, n + 17, k + 24, values="nonfinite"),
    ]
    admitted = [repair(case, source, gpu) for case in wanted]
    return [
        dataclasses.replace(case, seed=seed + index)
        for index, case in enumerate(admitted)
        if case is not None
    ]


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
        How many cases it passed, or the first finding. An instruction that the emulator does not
        know says nothing of the kernel: no case then, and a note that names it.

    Raises:
        InfrastructureError: If the machine failed.
    """
    budget_s = settings.current().emulator_budget_s
    limit_s = _TIMEOUT_FACTOR * budget_s + _TIMEOUT_EXTRA_S
    try:
        answer: CheckPassed | Refuted = worker.call(
            emulate_here, (compiled, key, cache_dir, seed, budget_s), timeout_s=limit_s,
            progress=progress,
        )  # fmt: skip
    except WorkerDied as death:
        detail = f"the emulator was not done after {limit_s:.0f} s: {death}"
        return Refuted(stage="emulator", check="cases", finding=Finding.HANG, detail=detail)
    return answer


def emulate_here(request: tuple[Compiled, GemmKey, Path, int, float]) -> CheckPassed | Refuted:
    """Run the cases in this process; what `emulate` sends to the worker."""
    compiled, key, cache_dir, seed, budget_s = request
    gpu = key.gpu.model_copy(update={"sms": _FEW_SMS})
    processor = EmulatedProcessor(compiled, Artifacts(cache_dir))
    bench = Bench(processor, gpu, settings.current().launch_timeout_s)
    deadline = time.monotonic() + budget_s
    try:
        for case in emulated_cases(compiled.source, key, gpu, seed=seed):
            if bench.examples and time.monotonic() > deadline:
                break
            report(case)
            refuted = attempt(bench, case)
            if refuted is not None:
                return refuted
    except (UnsupportedInstructionError, PtxSyntaxError) as error:
        return CheckPassed(check="emulator", examples=0, seed=seed, note=f"not emulated: {error}")
    return CheckPassed(
        check="emulator", examples=bench.examples, seed=seed, worst_ratio=bench.worst_ratio
    )


def attempt(bench: Bench, case: Case) -> Refuted | None:
    """Try one case on the emulator; normals twice, with the warps in another order."""
    try:
        bench.attempt(case)
        if case.values == "normal" and bench.source.header.deterministic:
            _repeat_in_other_orders(bench, case)
    except EmulationStopped as stopped:
        fault = stopped.finding.fault
        found = _FINDINGS.get(fault) or Finding(fault.value)
        return _refuted(found, str(stopped.finding), case)
    except KernelFailed as failure:
        found = failure.finding
        if case.values == "accumulator" and found is Finding.WRONG_VALUE:
            found = Finding.HALF_ACCUMULATION
        return _refuted(found, str(failure), failure.case)
    return None


def _repeat_in_other_orders(bench: Bench, case: Case) -> None:
    processor = bench.processor
    assert isinstance(processor, EmulatedProcessor)
    operands, bound = bench.build(case), bench.bind(case)
    results = []
    for order in (None, case.seed + 1, case.seed + 2):
        processor.seed = order
        operands.poison()
        bench.launch(bound, operands, None, case)
        results.append(operands.take_result()[0].view(torch.int16))
    processor.seed = None
    bench.examples += len(results)
    if not all(torch.equal(results[0], other) for other in results[1:]):
        detail = "the result depends on the order in which warps run"
        raise KernelFailed(Finding.NOT_REPRODUCIBLE, detail, case)


def _refuted(finding: Finding, detail: str, case: Case) -> Refuted:
    return Refuted(
        stage="emulator", check="cases", finding=finding, detail=detail, case=case.as_data()
    )
