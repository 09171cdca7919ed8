"""The same inputs again: identical bits, whatever the machine did in between.

The values cancel, so that a result is nothing but the rounding of its sum: where the order of
additions changes, it shows in most elements.
"""

import dataclasses
from collections.abc import Iterator

import torch

from l2tune.runtime.emulator.processor import EmulatedProcessor
from l2tune.runtime.processor import Bound
from l2tune.spec.outcome import Finding
from l2tune.verify.arena import Arena
from l2tune.verify.case import Case
from l2tune.verify.plan import Plan
from l2tune.verify.trial import Bench, KernelFailed

VALUES = "cancelling"
LONG_SUM = Case(8, 16, 512, values=VALUES)
"""One small tile whose sum may be split over many blocks."""
_RUNS, _KEY_RUNS = 25, 7
_MOST_ORDERS = 3
_STREAMS = 3
_NEIGHBOUR_BYTES = 1 << 26


def repeat(bench: Bench, plan: Plan) -> None:
    """Problems with long sums and with many tiles."""
    for wanted in (LONG_SUM, Case(256, 256, 1024), Case(1000, 520, 264)):
        case = bench.admit(dataclasses.replace(wanted, values=VALUES, seed=plan.seed + 5))
        if case is not None and bench.has_time():
            run_again(bench, case, runs=_RUNS)


def key_repeat(bench: Bench, plan: Plan) -> None:
    """The key's own shape."""
    case = dataclasses.replace(plan.key_case, values=VALUES, seed=plan.seed + 6)
    run_again(bench, case, runs=_KEY_RUNS)


def run_again(bench: Bench, case: Case, *, runs: int) -> None:
    """Run a case `runs` times on several streams; the emulator at most three, in orders of its own.

    Raises:
        KernelFailed: If the bits differ though the contract does not say so, or a result is wrong.
    """
    operands, bound = bench.build(case), bench.bind(case)
    if isinstance(bench.processor, EmulatedProcessor):
        results = _in_orders(bench, bench.processor, bound, operands, case, runs)
    else:
        results = _on_streams(bench, bound, operands, case, runs)
    first = next(results).view(torch.int16)
    for turn, result in enumerate(results, start=2):
        if torch.equal(result.view(torch.int16), first):
            continue
        if bench.source.header.deterministic or bench.ratio(operands, result, case) > 1.0:
            detail = f"run {turn} of the same inputs differs from run 1"
            raise KernelFailed(Finding.NOT_REPRODUCIBLE, detail, case)


def _on_streams(
    bench: Bench, bound: Bound, operands: Arena, case: Case, runs: int
) -> Iterator[torch.Tensor]:
    """Results beside a neighbour that uses up memory bandwidth on another stream."""
    neighbour = torch.empty(_NEIGHBOUR_BYTES, dtype=torch.uint8, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(_STREAMS)]  # type: ignore[no-untyped-call]
    first = bench.run(bound, operands, bench.workspace(bound, case), case)
    torch.cuda.synchronize()
    yield first
    for turn in range(runs - 1):
        with torch.cuda.stream(streams[(turn + 1) % _STREAMS]):
            neighbour.add_(1)
        with torch.cuda.stream(streams[turn % _STREAMS]):
            result = bench.run(bound, operands, bench.workspace(bound, case), case)
        yield result


def _in_orders(
    bench: Bench, processor: EmulatedProcessor, bound: Bound, operands: Arena, case: Case, runs: int
) -> Iterator[torch.Tensor]:
    """Results with the warps in the fixed order, then in random ones."""
    try:
        for order in range(min(runs, _MOST_ORDERS)):
            processor.seed = case.seed + order if order else None
            yield bench.run(bound, operands, bench.workspace(bound, case), case)
    finally:
        processor.seed = None
