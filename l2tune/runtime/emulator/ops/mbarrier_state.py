"""The state of mbarriers: arrivals and bytes that a phase still owes, phase after phase.

It lives beside shared memory, by block and offset; the eight bytes themselves are written by `init`
and read by every use, so that an unsynchronised `init` is a race like any other. A phase completes
when no arrival and no byte is owed. The instructions are in `mbarrier`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.races import Stamp
from l2tune.runtime.emulator.warp import Warp

LIMIT = (1 << 20) - 1
"""Most arrivals and most bytes of a phase."""

SIZE_BYTES = 8

_PUBLISHED = -3
"""Where `Block.barriers` holds what each warp's last fence made known."""


class Mbarrier:
    """One mbarrier.

    Attributes:
        phase: Phases completed.
        pending: Arrivals that the current phase still needs.
        owed_bytes: That copies will bring in the current phase; below 0 if they came first.
        published: Whether a fence has shown its initialisation to the async proxy.
        valid: Until it is invalidated.
        known: What whoever sees the last phase complete will know.
    """

    def __init__(self, where: int, arrivals: int, agent: int) -> None:
        self.where, self.agent = where, agent
        self._arrivals = self._next = self.pending = arrivals
        self.phase, self.owed_bytes = 0, 0
        self.published, self.valid = False, True
        self.known: Stamp | None = None
        self._gathered: Stamp | None = None

    def __str__(self) -> str:
        return (
            f"the mbarrier at {self.where:#x}, phase {self.phase}, still needs {self.pending}"
            f" arrivals and {self.owed_bytes} bytes"
        )

    def stays(self) -> Callable[[], bool]:
        """What tells whether its phase is still this one, and it is still an mbarrier."""
        phase = self.phase
        return lambda: self.valid and self.phase == phase

    def expect_arrival(self, warp: Warp) -> None:
        """Need one arrival more in this phase."""
        self.pending += 1
        if self.pending > LIMIT:
            warp.stop(Fault.INVALID_USE, f"{self}: more than {LIMIT} arrivals", address=self.where)

    def arrive(
        self, warp: Warp, count: int, known: Stamp | None, *, owed_bytes: int = 0,
        drops: bool = False,
    ) -> None:  # fmt: skip
        """Take arrivals, after the bytes that they announce."""
        self._owe(warp, owed_bytes)
        if not 0 < count <= self.pending:
            warp.stop(Fault.INVALID_USE, f"{self}, and {count} arrive at once", address=self.where)
        self.pending -= count
        self._next -= count if drops else 0
        self._gather(warp, known)
        self._turn(warp)

    def expect(self, warp: Warp, owed_bytes: int) -> None:
        """Announce bytes."""
        self._owe(warp, owed_bytes)
        self._turn(warp)

    def deliver(self, warp: Warp, delivered_bytes: int, known: Stamp | None) -> None:
        """Take bytes that a copy has brought."""
        self._owe(warp, -delivered_bytes)
        self._gather(warp, known)
        self._turn(warp)

    def _owe(self, warp: Warp, owed_bytes: int) -> None:
        self.owed_bytes += owed_bytes
        if abs(self.owed_bytes) > LIMIT:
            warp.stop(Fault.INVALID_USE, f"{self}: at most {LIMIT} can be", address=self.where)

    def _gather(self, warp: Warp, known: Stamp | None) -> None:
        if known is not None:
            self._gathered = warp.block.machine.clocks.merge(self._gathered, known)

    def _turn(self, warp: Warp) -> None:
        """Complete the phase if nothing is owed."""
        if self.pending:
            return
        if self.owed_bytes < 0:
            warp.stop(
                Fault.INVALID_USE,
                f"{self}: copies brought {-self.owed_bytes} bytes more than were announced",
                address=self.where,
            )
        if self.owed_bytes == 0:
            self.phase += 1
            self.pending = self._arrivals = self._next
            self.known, self._gathered = self._gathered, None


def find_mbarrier(warp: Warp, space: str, where: int, *, publishes: bool = False) -> Mbarrier:
    """The mbarrier at an address.

    Args:
        warp: Who uses it.
        space: As in the instruction.
        where: Its address.
        publishes: Whether the async proxy will use it, which takes a fence.

    Raises:
        EmulationStopped: If there is none, or its initialisation is not ordered before.
    """
    block, offset = warp.block.machine.memory.shared_target(warp, space, where)
    barrier = block.mbarriers.get(offset)
    if barrier is None:
        what = "misaligned" if offset % SIZE_BYTES else "not initialised as an mbarrier"
        warp.stop(Fault.INVALID_USE, f"shared memory at {where:#x} is {what}", address=where)
    assert isinstance(barrier, Mbarrier)
    if publishes and not barrier.published:
        warp.stop(
            Fault.MISSING_PROXY_FENCE,
            f"the mbarrier at {where:#x} was initialised, and no fence.mbarrier_init or"
            " fence.proxy.async shows it to copies",
            address=where,
        )
    warp.block.machine.memory.read_shared(
        warp, block, np.array([offset]), SIZE_BYTES, ticket=None, proxy="generic"
    )
    return barrier


def publish(warp: Warp) -> None:
    """Show the mbarriers that a warp has initialised to copies and to the cluster."""
    for barrier in warp.block.mbarriers.values():
        if barrier.agent == warp.agent:
            barrier.published = True
    stamps = warp.block.barriers.setdefault(_PUBLISHED, {})
    stamps[warp.index] = warp.block.machine.clocks.release(warp.agent)


def published(warp: Warp) -> Stamp | None:
    """What a relaxed arrival at a cluster's barrier still makes known: fenced initialisations.

    With them goes all that the warp did before the fence, which hides some races.
    """
    stamp: Stamp | None = warp.block.barriers.get(_PUBLISHED, {}).get(warp.index)
    return stamp
