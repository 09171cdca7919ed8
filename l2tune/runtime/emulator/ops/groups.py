"""Groups of asynchronous copies, as `cp.async` and bulk copies of a thread form them.

Each lane counts its own groups: an operation belongs, for a lane, to the group that the lane's next
commit closes. Waiting completes operations as late as the program allows, so that whatever it
should have waited for shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from l2tune.runtime.emulator.program import WARP_LANES, Instruction
from l2tune.runtime.emulator.warp import Lanes, Warp

if TYPE_CHECKING:
    from l2tune.runtime.emulator.machine import Machine


class Operation(Protocol):
    """An asynchronous operation.

    Attributes:
        lanes: That have not waited for it.
    """

    lanes: Lanes

    @property
    def harmless(self) -> bool:
        """Whether the launch may end without a wait for it."""

    def complete(self) -> None:
        """Let it take effect."""


class Groups:
    """A warp's groups of one kind."""

    def __init__(self) -> None:
        self._closed = np.zeros(WARP_LANES, dtype=np.int64)
        self._operations: list[tuple[Operation, Lanes]] = []

    def add(self, operation: Operation) -> None:
        """Put an operation into the open group of each of its lanes."""
        self._operations.append((operation, self._closed.copy()))

    def commit(self, mask: Lanes) -> None:
        """Close the open group of some lanes."""
        self._closed[mask] += 1

    def due(self, mask: Lanes, pending: int | None) -> list[tuple[Operation, Lanes]]:
        """What some lanes wait for: all but the newest `pending` groups, or everything issued.

        Returns:
            Operations in order, with the lanes that wait for each.
        """
        found = []
        for operation, group in self._operations:
            lanes = operation.lanes & mask
            if pending is not None:
                lanes &= group < self._closed - pending
            if lanes.any():
                found.append((operation, lanes))
        return found

    def forget_finished(self) -> None:
        """Drop operations that no lane still waits for."""
        self._operations = [item for item in self._operations if item[0].lanes.any()]


class Copies:
    """What `Warp.copies` holds.

    Attributes:
        single: Groups of `cp.async`.
        bulk: Groups of `cp.async.bulk`.
    """

    def __init__(self) -> None:
        self.single, self.bulk = Groups(), Groups()


def copies_of(warp: Warp) -> Copies:
    """The warp's groups, made when first asked for."""
    if warp.copies is None:
        warp.copies = Copies()
    copies: Copies = warp.copies
    return copies


@contextlib.contextmanager
def executing(warp: Warp, instruction: Instruction | None) -> Iterator[None]:
    """Lay findings at an earlier instruction of the warp: the one that started an operation."""
    now = warp.instruction
    warp.instruction = instruction
    try:
        yield
    finally:
        warp.instruction = now


def discard(machine: Machine, operation: Operation) -> None:
    """Take an operation that has completed off the machine's list."""
    for place, other in enumerate(machine.pending):
        if other is operation:
            del machine.pending[place]
            return
