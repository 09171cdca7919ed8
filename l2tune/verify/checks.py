"""The checks of the gate that launch the kernel, in the order in which they run.

Each takes a `Bench` and raises `KernelFailed` with the first thing that is wrong. This module runs
inside the worker process.
"""

import dataclasses
from collections.abc import Callable, Iterator

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed

from l2tune.runtime.processor import Bound
from l2tune.runtime.reference import error_ratio
from l2tune.spec.outcome import Finding
from l2tune.spec.problem import Problem
from l2tune.verify.admitted import repair, tile_sizes
from l2tune.verify.arena import Arena
from l2tune.verify.case import Case, case_of
from l2tune.verify.producer import run_behind_producer
from l2tune.verify.strategies import cases
from l2tune.verify.trial import Bench, KernelFailed

_PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
_REPEATS = 24
_STREAMS = 3


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the gate is asked to do.

    Attributes:
        key_case: The key's own shape, as a case.
        seed: What every draw starts from.
        max_examples: Hypothesis examples for each property.
    """

    key_case: Case
    seed: int
    max_examples: int


def smoke(bench: Bench, plan: Plan) -> None:
    """The key's own shape, with integers whose sums are exact in any type."""
    bench.attempt(dataclasses.replace(plan.key_case, values="integers", seed=plan.seed))


def rerun(bench: Bench, plan: Plan) -> None:
    """Second and later calls: same buffers, new inputs, an output that holds plausible values.

    A kernel that looks at its output or its workspace to see whether it ran before shows here.
    """
    case = _small(bench, plan, values="integers")
    operands = bench.build(case)
    bound = bench.bind(case)
    scratch = bench.workspace(bound, case)
    generator = torch.Generator(bench.processor.device).manual_seed(plan.seed)
    for turn in range(4):
        turn_case = dataclasses.replace(case, seed=plan.seed + 10 + turn)
        operands.fill(turn_case)
        if turn == 0:
            operands.poison()
        elif turn == 2:
            shape = operands.c.view.shape
            operands.c.view.copy_(
                torch.randn(shape, generator=generator, device=generator.device).to(bench.dtype)
            )
        if scratch is not None and bound.workspace_zeroed:
            scratch.zero_()
        bench.launch(bound, operands, scratch, turn_case)
        bench.examples += 1
        ratio = bench.ratio(operands, operands.c.view, turn_case)
        if ratio > 1.0:
            detail = f"call {turn + 1} on the same buffers is wrong by {ratio:.3g} times its bound"
            raise KernelFailed(Finding.STALE_OUTPUT, detail, turn_case)


def _property(*values: str) -> Callable[[Bench, Plan], None]:
    """A check that draws cases with Hypothesis; a failing case is shrunk before it is reported."""

    def check(bench: Bench, plan: Plan) -> None:
        @hypothesis_seed(plan.seed)
        @settings(
            max_examples=plan.max_examples,
            deadline=None,
            database=None,
            phases=_PHASES,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(case=cases(bench.source, bench.gpu, values))
        def holds(case: Case) -> None:
            bench.attempt(case)

        if values[0] == "normal":  # the second class of values for the key's own shape
            bench.attempt(dataclasses.replace(plan.key_case, values="normal", seed=plan.seed + 1))
        for case in _edges(bench, plan, values):
            bench.attempt(case)
        holds()

    return check


def _edges(bench: Bench, plan: Plan, values: tuple[str, ...]) -> Iterator[Case]:
    """Fixed cases that every kernel is tried on: around its tiles, long k, many tiles, batches."""
    tiles = tile_sizes(bench.source)
    picks = [(t, u, v) for t in tiles[-3:] for u in tiles[:1] for v in tiles[1:3]]
    shapes = [
        (1, 1, 1, 1),
        (1, 257, 64, 1),
        (257, 1, 129, 1),
        (100, 127, 129, 2),
        (128, 128, 64, 1),
    ]
    shapes += [(64, 72, 2120, 1), (1288, 1544, 72, 1), (136, 264, 192, 3)]
    shapes += [(*pick, 1) for pick in picks]
    for index, (m, n, k, batch) in enumerate(shapes):
        value = values[index % len(values)]
        case = Case(m, n, k, batch, values=value, seed=plan.seed + index)
        admitted = repair(case, bench.source, bench.gpu)
        if admitted is not None:
            yield admitted


def accumulator(bench: Bench, plan: Plan) -> None:
    """Whether products are summed in float32: half-precision sums lose terms beside a large one."""
    if bench.source.acc != "float32":
        return
    for k in (32, 64, 96, 256, 1024, 4096, plan.key_case.k):
        wanted = Case(64, 64, min(k, 8192), values="accumulator", seed=plan.seed + k)
        case = repair(wanted, bench.source, bench.gpu)
        if case is None:
            continue
        try:
            bench.attempt(case)
        except KernelFailed as failure:
            if failure.finding is not Finding.WRONG_VALUE:
                raise
            detail = f"sums lose terms beside a large one, as float16 accumulation does: {failure}"
            raise KernelFailed(Finding.HALF_ACCUMULATION, detail, case) from None


def metamorphic(bench: Bench, plan: Plan) -> None:
    """Relations that need no reference, at the key's full size."""
    case = dataclasses.replace(plan.key_case, values="normal", seed=plan.seed + 77)
    operands = bench.build(case)
    bound = bench.bind(case)
    scratch = bench.workspace(bound, case)
    plain = _run(bench, bound, operands, scratch, case)
    operands.a.view.mul_(2)
    doubled = _run(bench, bound, operands, scratch, case)
    safe = doubled.isfinite() & (plain.abs() > torch.finfo(bench.dtype).smallest_normal)
    if bench.source.header.deterministic and not torch.equal((2 * plain)[safe], doubled[safe]):
        detail = "doubling a did not double the result exactly"
        raise KernelFailed(Finding.WRONG_VALUE, detail, case)
    operands.a.view.mul_(0.5)
    logical = operands.logical_a
    order = torch.randperm(logical.shape[-2], device=logical.device)
    logical.copy_(logical[..., order, :].clone())
    permuted = _run(bench, bound, operands, scratch, case)
    ratio = error_ratio(operands.logical_a, operands.logical_b, permuted, acc=bench.source.acc)
    bench.worst_ratio = max(bench.worst_ratio, ratio.item())
    if not ratio.item() <= 1.0:
        detail = f"permuted rows: error is {ratio.item():.3g} times its bound"
        raise KernelFailed(Finding.WRONG_VALUE, detail, case)


def _run(
    bench: Bench, bound: Bound, operands: Arena, scratch: torch.Tensor | None, case: Case
) -> torch.Tensor:
    if scratch is not None and bound.workspace_zeroed:
        scratch.zero_()
    operands.poison()
    bench.launch(bound, operands, scratch, case)
    bench.examples += 1
    return operands.take_result()[0]


def repeat(bench: Bench, plan: Plan) -> None:
    """The same inputs many times, on several streams and beside a memory-hungry neighbour."""
    for wanted in (
        plan.key_case,
        Case(256, 256, 1024),
        Case(1000, 520, 264),
    ):
        case = repair(
            dataclasses.replace(wanted, values="normal", seed=plan.seed + 5),
            bench.source,
            bench.gpu,
        )
        if case is not None:
            _repeat(bench, case)


def _repeat(bench: Bench, case: Case) -> None:
    operands = bench.build(case)
    bound = bench.bind(case)
    neighbour = torch.empty(1 << 26, dtype=torch.uint8, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(_STREAMS)]  # type: ignore[no-untyped-call]
    results = [_run(bench, bound, operands, bench.workspace(bound, case), case)]
    torch.cuda.synchronize()
    for turn in range(_REPEATS):
        stream = streams[turn % _STREAMS]
        with torch.cuda.stream(streams[(turn + 1) % _STREAMS]):
            neighbour.add_(1)
        with torch.cuda.stream(stream):
            results.append(_run(bench, bound, operands, bench.workspace(bound, case), case))
    first = results[0].view(torch.int16)
    for turn, result in enumerate(results[1:], start=1):
        if torch.equal(result.view(torch.int16), first):
            continue
        ratio = bench.ratio(operands, result, case)
        if bench.source.header.deterministic or ratio > 1.0:
            detail = f"run {turn + 1} of the same inputs differs from run 1"
            raise KernelFailed(Finding.NOT_REPRODUCIBLE, detail, case)


def dependent_launch(bench: Bench, plan: Plan) -> None:
    """A kernel that may start before its predecessor ends must wait before it reads.

    It runs behind a producer of ours that triggers its dependents at once and writes a and b late.
    """
    if not bench.source.header.launch[0].pdl:
        return
    case = _small(bench, plan, values="integers")
    for turn in range(4):
        turn_case = dataclasses.replace(case, seed=plan.seed + 200 + turn)
        ratio = run_behind_producer(bench, turn_case)
        bench.examples += 1
        if ratio > 1.0:
            detail = "read an operand before the launch that writes it was done"
            raise KernelFailed(Finding.IGNORES_DEPENDENCY, detail, turn_case)


def _small(bench: Bench, plan: Plan, *, values: str) -> Case:
    """A small case of the key's kind, else the key's own shape."""
    key = plan.key_case
    small = dataclasses.replace(
        key, m=min(key.m, 256), n=min(key.n, 256), k=min(key.k, 512), pad=(0, 0, 0), values=values
    )
    return repair(small, bench.source, bench.gpu) or dataclasses.replace(key, values=values)


CHECKS: tuple[tuple[str, str, Callable[[Bench, Plan], None]], ...] = (
    ("sandbox", "smoke", smoke),
    ("sandbox", "rerun", rerun),
    ("properties", "integers", _property("integers", "permutation")),
    ("properties", "magnitudes", _property("magnitudes")),
    ("properties", "accumulator", accumulator),
    (
        "properties",
        "values",
        _property("normal", "uniform", "heavy_tailed", "cancelling", "subnormal", "largest"),
    ),
    ("properties", "nonfinite", _property("nonfinite")),
    ("properties", "metamorphic", metamorphic),
    ("repeat", "repeat", repeat),
    ("repeat", "dependent_launch", dependent_launch),
)
"""Stage, name and function of each check; docs/gate.md describes what each is for."""


def plan_for(bench: Bench, problem: Problem, *, seed: int, max_examples: int) -> Plan:
    """The plan for a key's problem."""
    case = case_of(problem, bench.source.layout)
    return Plan(key_case=case, seed=seed, max_examples=max_examples)
