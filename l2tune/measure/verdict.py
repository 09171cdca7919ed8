"""What timing itself can still find wrong with a kernel that passed the gate."""

import random

import torch

from l2tune.measure.clock import DeviceClock
from l2tune.measure.operands import OperandSets
from l2tune.measure.rounds import Rounds
from l2tune.runtime.reference import error_ratio
from l2tune.spec.outcome import Finding, Interval, Refuted

_CHECKED_SETS = 2


def refuse(check: str, finding: Finding, detail: str, **case: object) -> Refuted:
    """Make a refusal by this stage."""
    return Refuted(stage="time", check=check, finding=finding, detail=detail, case=case)


def too_fast(taken: Interval, *, minimum_us: float) -> Refuted | None:
    """Refuse a time that the GPU's memory bandwidth and arithmetic do not allow."""
    if taken.us >= minimum_us:
        return None
    detail = f"It took {taken.us:.3f} us; the GPU needs at least {minimum_us:.3f} us."
    return refuse("physics", Finding.IMPOSSIBLE_TIME, detail, us=taken.us, minimum_us=minimum_us)


def check_after_timing(
    name: str, rounds: Rounds, sets: OperandSets, clock: DeviceClock, rng: random.Random
) -> Refuted | None:
    """Replay the timed graph into poisoned outputs and judge some of its results.

    Raises:
        KernelDied: If the kernel faulted or hung.
    """
    key = sets.key
    with torch.cuda.stream(clock.stream):
        sets.refill()  # another contestant may have changed them
    rounds.replay_again(name)
    with torch.cuda.stream(clock.stream):
        if not sets.unchanged():
            return refuse(
                "after_timing", Finding.INPUT_MODIFIED, "It changed a or b.", key=str(key)
            )
        for index in rng.sample(range(sets.count), _CHECKED_SETS):
            ratio = float(
                error_ratio(sets.a[index], sets.b[index], sets.c[index], acc=key.acc).item()
            )
            if not ratio <= 1.0:
                detail = f"A result on timed operands is {ratio:.3g} times its error bound off."
                return refuse(
                    "after_timing", Finding.WRONG_VALUE, detail,
                    key=str(key), set=index, ratio=ratio, seed=sets.seed,
                )  # fmt: skip
    return None
