"""Draws cases with Hypothesis, and makes a failing one smaller before it is reported."""

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed

from l2tune.verify.case import Case
from l2tune.verify.plan import Plan
from l2tune.verify.strategies import cases
from l2tune.verify.trial import Bench, KernelFailed

_PHASES = (Phase.explicit, Phase.generate, Phase.shrink)


def try_drawn_cases(bench: Bench, plan: Plan, values: tuple[str, ...]) -> None:
    """Try `plan.max_examples` drawn cases.

    Args:
        bench: The kernel.
        plan: How many, and from which seed.
        values: Classes of values to draw from.

    Raises:
        KernelFailed: With the smallest case found that shows the fault found first.
    """
    tried: dict[Case, KernelFailed | None] = {}

    @hypothesis_seed(plan.seed)
    @settings(
        max_examples=plan.max_examples,
        deadline=None,
        database=None,
        phases=_PHASES,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(case=cases(bench.source, bench.gpu, values, most_products=bench.most_products))
    def holds(case: Case) -> None:
        if case not in tried and bench.has_time():
            tried[case] = _failure(bench, case)
        failure = tried.get(case)  # what failed once counts, though it may not fail again
        kinds = [each.finding for each in tried.values() if each is not None]
        if failure is not None and failure.finding is kinds[0]:  # shrink what was found first
            raise failure

    holds()


def _failure(bench: Bench, case: Case) -> KernelFailed | None:
    """What is wrong with a case, without the frames that hold its operands."""
    try:
        bench.attempt(case)
    except KernelFailed as failure:
        return failure.with_traceback(None)
    return None
