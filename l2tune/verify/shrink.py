"""The smallest case near a failing one that fails in the same way.

Hypothesis shrinks what it drew. This shrinks any case, such as a key's own shape; only on the
emulator, for a GPU may not survive another try of a kernel that is wrong.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from l2tune.verify.case import Case
from l2tune.verify.trial import Bench, KernelFailed


def shrunk(bench: Bench, failure: KernelFailed) -> KernelFailed:
    """Shrink a failure's case while the bench has time.

    Returns:
        The failure of the smallest case found; `failure` itself where no single attempt shows it.
    """
    tried: set[Case] = set()
    found, smaller = failure, _again(bench, failure.case, failure)
    while smaller is not None:
        found, smaller = smaller, None
        for case in _simpler(found.case):
            if case in tried or not bench.has_time():
                continue
            tried.add(case)
            smaller = _again(bench, case, failure)
            if smaller is not None:
                break
    return found


def _again(bench: Bench, case: Case, failure: KernelFailed) -> KernelFailed | None:
    """The failure of `case`, if it is of the same kind."""
    if not bench.accepts(case.problem(bench.source.layout)):
        return None
    try:
        bench.attempt(case)
    except KernelFailed as other:
        return other if other.finding is failure.finding else None
    return None


def _simpler(case: Case) -> Iterator[Case]:
    """Cases with one thing less, the boldest first."""
    for simpler in (
        dataclasses.replace(case, batch=1, shared="", gap=0),
        dataclasses.replace(case, pad=(0, 0, 0)),
        dataclasses.replace(case, offset=(0, 0, 0)),
    ):
        if simpler != case:
            yield simpler
    for name in "mnk":
        size = getattr(case, name)
        for less in (1, size // 2, size - size // 4, size - 1):
            if 0 < less < size:
                changes: dict[str, Any] = {name: less}
                yield dataclasses.replace(case, **changes)
