"""The checks of the gate that launch the kernel, in the order in which they run.

Each takes a `Bench` and a `Plan` and raises `KernelFailed` with the first thing that is wrong. This
module runs inside the worker process. Where a plan asks for no drawn examples, it needs no
Hypothesis.
"""

import dataclasses
from collections.abc import Callable, Iterator

import torch

from l2tune.spec.outcome import Finding
from l2tune.verify.admitted import tile_sizes
from l2tune.verify.case import Case
from l2tune.verify.plan import Plan, small_case
from l2tune.verify.producer import run_behind_producer
from l2tune.verify.relations import metamorphic
from l2tune.verify.repetition import key_repeat, repeat
from l2tune.verify.trial import Bench, KernelFailed


def smoke(bench: Bench, plan: Plan) -> None:
    """The key's own shape, with integers whose sums are exact in any type."""
    bench.attempt(dataclasses.replace(plan.key_case, values="integers", seed=plan.seed))


def key_values(bench: Bench, plan: Plan) -> None:
    """The key's own shape, with normals, and with sums that lose terms in half precision.

    Where half precision is what the contract says, with sums of few terms, which it has exactly.
    """
    other = "accumulator" if bench.source.acc == "float32" else "magnitudes"
    for index, values in enumerate(("normal", other), start=1):
        if bench.has_time():
            case = dataclasses.replace(plan.key_case, values=values, seed=plan.seed + index)
            bench.attempt(case)


def rerun(bench: Bench, plan: Plan) -> None:
    """Second and later calls: same buffers, new inputs, an output that holds plausible values.

    A kernel that looks at its output or its workspace to see whether it ran before shows here.
    """
    case = small_case(bench, plan, values="integers")
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
    """A check of fixed cases, and of as many as are asked for that Hypothesis draws."""

    def check(bench: Bench, plan: Plan) -> None:
        for case in _edges(bench, plan, values):
            if bench.has_time():
                bench.attempt(case)
        if plan.max_examples:
            from l2tune.verify.drawn import try_drawn_cases  # needs Hypothesis

            try_drawn_cases(bench, plan, values)

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
        admitted = bench.admit(Case(m, n, k, batch, values=value, seed=plan.seed + index))
        if admitted is not None:
            yield admitted


def accumulator(bench: Bench, plan: Plan) -> None:
    """Whether products are summed in float32: half-precision sums lose terms beside a large one."""
    if bench.source.acc != "float32":
        return
    for k in (32, 64, 96, 256, 1024, 4096):
        case = bench.admit(Case(64, 64, k, values="accumulator", seed=plan.seed + k))
        if case is not None and case.k >= k and bench.has_time():
            bench.attempt(case)


def dependent_launch(bench: Bench, plan: Plan) -> None:
    """A kernel that may start before its predecessor ends must wait before it reads.

    On a GPU it runs behind a producer of ours that triggers its dependents at once and writes a and
    b late. The emulator finds reads before the wait in any launch.
    """
    if not bench.source.is_dependent(bench.source.header.launch[0]):
        return
    case = small_case(bench, plan, values="integers")
    if bench.processor.device != "cuda":
        bench.attempt(dataclasses.replace(case, seed=plan.seed + 200))
        return
    for turn in range(4):
        turn_case = dataclasses.replace(case, seed=plan.seed + 200 + turn)
        ratio = run_behind_producer(bench, turn_case)
        bench.examples += 1
        if ratio > 1.0:
            detail = "read an operand before the launch that writes it was done"
            raise KernelFailed(Finding.IGNORES_DEPENDENCY, detail, turn_case)


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
    ("properties", "key_values", key_values),
    ("properties", "metamorphic", metamorphic),
    ("repeat", "repeat", repeat),
    ("repeat", "key_repeat", key_repeat),
    ("repeat", "dependent_launch", dependent_launch),
)
"""Stage, name and function of each check; docs/gate.md describes what each is for."""
