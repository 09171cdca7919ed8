"""What the checks of the gate are asked to do for a key, and on which problems."""

import dataclasses

from l2tune.errors import UnsupportedProblemError
from l2tune.spec.problem import Problem
from l2tune.verify.case import Case, case_of
from l2tune.verify.trial import Bench


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the gate is asked to do.

    Attributes:
        key_case: The key's own shape, as a case; scaled down where it is too large for the bench.
        seed: What every draw starts from.
        max_examples: Hypothesis examples for each property.
        note: How `key_case` differs from the key's own shape; empty where it does not.
    """

    key_case: Case
    seed: int
    max_examples: int
    note: str = ""


def plan_for(bench: Bench, problem: Problem, *, seed: int, max_examples: int) -> Plan:
    """The plan for a key's problem.

    Raises:
        UnsupportedProblemError: If it is too large for the bench, and so is every other problem
            that the contract admits.
    """
    own = case_of(problem, bench.source.layout)
    if bench.most_products is None:
        return Plan(own, seed, max_examples)
    case = bench.admit(own)
    if case is None:
        raise UnsupportedProblemError(
            f"{bench.source.name} admits no problem near {own.m} x {own.n} x {own.k} that has at"
            f" most {bench.most_products} products, as the emulator needs"
        )
    note = "" if case == own else f"scaled down to {case.m} x {case.n} x {case.k} x {case.batch}"
    return Plan(case, seed, max_examples, note)


def small_case(bench: Bench, plan: Plan, *, values: str) -> Case:
    """A small case of the key's kind, else the key's own shape."""
    key = plan.key_case
    small = dataclasses.replace(
        key, m=min(key.m, 256), n=min(key.n, 256), k=min(key.k, 512), pad=(0, 0, 0), values=values
    )
    return bench.admit(small) or dataclasses.replace(key, values=values)
