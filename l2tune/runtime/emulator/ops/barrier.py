"""Barriers of a block, fences and sleep: `bar`, `barrier.cta`, `membar`, `fence`, `nanosleep`.

A barrier counts threads, whole warps at a time where the instruction is `.aligned`. Whoever syncs
learns what all who came knew. Barriers of a cluster are in `cluster`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from l2tune.runtime.emulator.block import Block
from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.operands import Reader, reader, writer
from l2tune.runtime.emulator.ops.mbarrier_state import publish
from l2tune.runtime.emulator.program import WARP_LANES, Instruction, Kernel, Operand
from l2tune.runtime.emulator.races import Stamp
from l2tune.runtime.emulator.warp import GIVES_WAY, Lanes, Step, Wait, Warp

_BARRIERS = 16
"""Of a block; 0 is `__syncthreads`."""


class NamedBarrier:
    """One barrier of a block.

    Attributes:
        identifier: 0 to 15.
        turn: How often it has completed.
        threads: That it needs, as those who came said; 0 if nobody is there.
        arrived: Threads there.
        holding: By warp, the turn in which each lane came and has not left yet, else -1.
        agreed: What the last completion made known.
        votes: Sum of the predicates of those there (`bar.red`), and of the last completion.
    """

    def __init__(self, identifier: int) -> None:
        self.identifier = identifier
        self.turn = self.threads = self.arrived = 0
        self.holding: dict[int, Lanes] = {}
        self.agreed: Stamp | None = None
        self.votes, self.decided = 0, 0
        self._gathered: Stamp | None = None

    def arrive(self, warp: Warp, threads: int, needed: int, votes: int) -> None:
        """Count threads, and complete if all that are needed are there."""
        if self.threads and needed != self.threads:
            warp.stop(
                Fault.INVALID_USE,
                f"barrier {self.identifier} is awaited with {needed} threads and with"
                f" {self.threads}",
            )
        clocks = warp.block.machine.clocks
        self.threads, self.arrived = needed, self.arrived + threads
        self._gathered = clocks.merge(self._gathered, clocks.release(warp.agent))
        self.votes += votes
        if self.arrived > needed:
            warp.stop(
                Fault.INVALID_USE,
                f"barrier {self.identifier}: {self.arrived} threads came, needed {needed}",
            )
        if self.arrived == needed:
            self.turn += 1
            self.agreed, self._gathered = self._gathered, None
            self.decided, self.votes = self.votes, 0
            self.threads = self.arrived = 0

    def holds(self, warp: Warp) -> bool:
        """Whether a warp, all that is left of it, waits here for the current turn."""
        turns = self.holding.get(warp.index)
        return turns is not None and bool((turns[warp.alive] == self.turn).all())

    def __str__(self) -> str:
        return f"barrier {self.identifier}: {self.arrived} of {self.threads} threads are there"


def _barrier(block: Block, identifier: int) -> NamedBarrier:
    found = block.barriers.get(identifier)
    if found is None:
        found = block.barriers[identifier] = NamedBarrier(identifier)
    assert isinstance(found, NamedBarrier)
    return found


def _require_together(warp: Warp, mask: Lanes) -> None:
    if not (mask == warp.alive).all():
        warp.stop(
            Fault.BARRIER_DIVERGENCE,
            f"{int(warp.alive.sum())} lanes of the warp run, {int(mask.sum())} are at the barrier",
            warp.alive & ~mask,
        )


def _require_enough(warp: Warp, barrier: NamedBarrier, needed: int, *, counted: bool) -> None:
    """Stop if so many threads have exited that the barrier can never complete."""
    missing = needed - barrier.arrived
    left = sum(
        WARP_LANES for other in warp.block.warps if other.alive.any() and not barrier.holds(other)
    )
    if missing > left:
        who = f"{needed} threads" if counted else "the whole block"
        warp.stop(
            Fault.BARRIER_DIVERGENCE,
            f"it waits for {who}; {barrier.arrived} are there, and only {left} of the others have"
            " not exited",
        )


class _Call:
    """One barrier instruction: which barrier, how many threads, who may pass."""

    def __init__(self, instruction: Instruction, kernel: Kernel, operands: tuple[Operand, ...]):
        self._aligned = instruction.opcode == "bar" or "aligned" in instruction.modifiers
        self._identifier: Reader = reader(operands[0], "u32", kernel)
        self._threads = reader(operands[1], "u32", kernel) if len(operands) > 1 else None

    def find(self, warp: Warp, mask: Lanes) -> tuple[NamedBarrier, int]:
        """The barrier, and the threads it needs."""
        first = int(np.flatnonzero(mask)[0])
        identifier = int(self._identifier(warp, mask)[first])
        if identifier >= _BARRIERS:
            warp.stop(Fault.INVALID_USE, f"barrier {identifier}, needed 0 to {_BARRIERS - 1}", mask)
        needed = len(warp.block.warps) * WARP_LANES
        if self._threads is not None:
            needed = int(self._threads(warp, mask)[first])
        if needed % WARP_LANES or not needed:
            warp.stop(
                Fault.INVALID_USE, f"{needed} threads, needed a multiple of {WARP_LANES}", mask
            )
        return _barrier(warp.block, identifier), needed

    def arrive(self, warp: Warp, mask: Lanes, votes: int = 0) -> NamedBarrier:
        """Count the warp's lanes that are not there yet."""
        if self._aligned:
            _require_together(warp, mask)
        barrier, needed = self.find(warp, mask)
        threads = WARP_LANES if self._aligned else int(mask.sum())
        _require_enough(warp, barrier, needed, counted=self._threads is not None)
        barrier.arrive(warp, threads, needed, votes)
        return barrier

    def sync(self, warp: Warp, mask: Lanes, votes: int = 0) -> Wait | NamedBarrier:
        """Arrive, once, and wait for the others."""
        barrier, needed = self.find(warp, mask)
        turns = barrier.holding.setdefault(warp.index, np.full(WARP_LANES, -1))
        late = mask & (turns < 0)
        if late.any():
            turn = barrier.turn
            self.arrive(warp, late, votes)
            turns[late] = turn
        if (turns[mask] >= barrier.turn).any():
            _require_enough(warp, barrier, needed, counted=self._threads is not None)
            return Wait(barrier)
        turns[mask] = -1
        assert barrier.agreed is not None
        warp.block.machine.clocks.acquire(warp.agent, barrier.agreed)
        return barrier


def _sync(instruction: Instruction, kernel: Kernel) -> Step:
    call = _Call(instruction, kernel, instruction.operands)

    def step(warp: Warp, mask: Lanes) -> Wait | None:
        result = call.sync(warp, mask)
        return result if isinstance(result, Wait) else None

    return step


def _arrive(instruction: Instruction, kernel: Kernel) -> Step:
    call = _Call(instruction, kernel, instruction.operands)

    def step(warp: Warp, mask: Lanes) -> None:
        call.arrive(warp, mask)

    return step


_VOTES: dict[str, Callable[[int, int], int]] = {
    "popc": lambda votes, threads: votes,
    "and": lambda votes, threads: int(votes == threads),
    "or": lambda votes, threads: int(votes > 0),
}


def _reduce(instruction: Instruction, kernel: Kernel) -> Step:
    """`bar.red.popc.u32 d, a{, b}, p` and `bar.red.{and,or}.pred`."""
    result, *operands, predicate = instruction.operands
    call, read = _Call(instruction, kernel, tuple(operands)), reader(predicate, "pred", kernel)
    kind = next(part for part in instruction.modifiers if part in _VOTES)
    ptx_type = "u32" if kind == "popc" else "pred"
    write = writer(result, ptx_type)

    def step(warp: Warp, mask: Lanes) -> Wait | None:
        _, needed = call.find(warp, mask)
        found = call.sync(warp, mask, int((read(warp, mask) & mask).sum()))
        if isinstance(found, Wait):
            return found
        value = _VOTES[kind](found.decided, needed)
        write(warp, np.full(WARP_LANES, value, np.uint32 if kind == "popc" else bool), mask)
        return None

    return step


def _warp_sync(instruction: Instruction, kernel: Kernel) -> Step:
    """Lanes of a warp are in step; what is left is that those named be there."""
    read = reader(instruction.operands[0], "u32", kernel)

    def step(warp: Warp, mask: Lanes) -> Wait | None:
        named = read(warp, mask)[mask]
        bits = int(named[0])
        members = (bits >> np.arange(WARP_LANES) & 1).astype(bool)
        if (named != bits).any() or (mask & ~members).any():
            warp.stop(
                Fault.BARRIER_DIVERGENCE, f"membermask {bits:#010x} does not name who executes it",
                mask & ~members,
            )  # fmt: skip
        if (members & warp.alive & ~mask).any():
            return Wait(f"bar.warp.sync with membermask {bits:#010x}: some lanes are elsewhere")
        return None

    return step


def _build_barrier(instruction: Instruction, kernel: Kernel) -> Step | None:
    parts = [part for part in instruction.modifiers if part not in ("cta", "aligned")]
    if parts[0] == "cluster":
        return None
    if parts[:2] == ["warp", "sync"]:
        return _warp_sync(instruction, kernel)
    return {"sync": _sync, "arrive": _arrive, "red": _reduce}[parts[0]](instruction, kernel)


def _fence(instruction: Instruction, kernel: Kernel) -> Step | None:
    """Order between warps comes from barriers and atomics; only proxies need more."""
    modifiers = instruction.modifiers
    if modifiers[0] == "mbarrier_init":
        return lambda warp, mask: publish(warp)
    if modifiers[0] == "proxy" and modifiers[1] == "async":

        def fence(warp: Warp, mask: Lanes) -> None:
            warp.block.machine.clocks.fence_proxy_async(warp.agent)
            publish(warp)

        return fence
    if modifiers[0] == "proxy" and modifiers[1] != "alias":
        return None
    return lambda warp, mask: None


BUILDERS = {
    "bar": _build_barrier,
    "barrier": _build_barrier,
    "membar": lambda instruction, kernel: lambda warp, mask: None,
    "fence": _fence,
    "nanosleep": lambda instruction, kernel: lambda warp, mask: GIVES_WAY,
}
