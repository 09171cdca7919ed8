"""Compiled -> Verified | Refuted: the gate that every kernel passes before it may run for a user.

Nothing here compiles or times. Hypothesis is imported only in the worker process that runs the
checks, and only where drawn examples are asked for.
"""

from l2tune.spec.outcome import KEY_CHECKS
from l2tune.verify.emulated import emulate
from l2tune.verify.gate import (
    KERNEL_CHECKS,
    QUICK_CHECKS,
    check_contract,
    check_resources,
    screen,
    verify,
)

__all__ = [
    "KERNEL_CHECKS", "KEY_CHECKS", "QUICK_CHECKS",
    "check_contract", "check_resources", "emulate", "screen", "verify",
]  # fmt: skip
