"""Which accesses are ordered: vector clocks over warps, and a shadow of who touched each byte.

The model, the same for shared memory and for global memory within a launch:

- An agent is a warp, whose lanes are in step, or one of its four asynchronous engines: for its
  `cp.async`, its bulk loads, its bulk stores and its `wgmma`. Two accesses to one byte of which one
  writes must be ordered by what the program does: barriers, mbarriers, completed groups, fences,
  atomics.
- An agent's time goes on at each release; an access bears the agent's time. Whoever acquires a
  release knows all that the releasing agent knew (happens-before).
- Beside what is known stands what of that the async proxy sees: a warp's generic writes once the
  warp itself has run `fence.proxy.async`, and what the async proxy wrote, once completed. Reads by
  the async proxy are held to this second clock, its writes to the first.
- Atomic accesses never race with each other, and order what their location links: each acquires
  what earlier ones released and releases in turn, whatever its `.sem`, since the fences that
  make relaxed ones do so are not followed.
- Launches before this one are one agent more, the last. A warp of a programmatic dependent launch
  knows of them from `griddepcontrol.wait` on, and others from it, as of any agent (`earlier`).

It errs towards silence: operations of one engine are taken to complete in the order of their
issue, and lanes of a warp never race with each other.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Stamp = np.ndarray[Any, np.dtype[np.int64]]
"""`[2, agents]`: time up to which each agent's accesses are known; seen by the async proxy."""

Proxy = Literal["generic", "async"]
Engine = Literal["copy", "load", "store", "wgmma"]

AGENTS_PER_WARP = 5
_ENGINES: dict[Engine, int] = {"copy": 1, "load": 2, "store": 3, "wgmma": 4}

_SHIFT = 32
_TIMES = (1 << _SHIFT) - 1
_ATOMIC = 1 << 62


@dataclasses.dataclass(frozen=True, slots=True)
class Ticket:
    """One asynchronous operation.

    Attributes:
        agent: The asynchronous engine that carries it out.
        time: Its number there.
        known: What its issuer knew.
    """

    agent: int
    time: int
    known: Stamp


@dataclasses.dataclass(slots=True)  # not frozen: made for every access, and that takes longer
class Accessor:
    """Who touches memory, as a shadow needs to know it.

    Attributes:
        agent: Warp or asynchronous engine.
        time: Its time.
        known: What it is held to: a row of a stamp, the second for reads by the async proxy.
        ordered: The first row.
        atomic: Whether it is an atomic access.
    """

    agent: int
    time: int
    known: Stamp
    ordered: Stamp
    atomic: bool = False

    def lacks_fence(self, earlier: "Conflict") -> bool:
        """Whether it is ordered after an access whose effect its proxy does not see."""
        return bool(self.ordered[earlier.agent] >= earlier.time)

    @property
    def waited(self) -> bool:
        """Whether the launches before this one have ended."""
        return bool(self.ordered[-1])


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """An earlier access that is not ordered before this one.

    Attributes:
        byte: Where, within the shadow.
        agent: Who made it.
        time: When.
        wrote: Whether it wrote.
    """

    byte: int
    agent: int
    time: int
    wrote: bool


class Clocks:
    """What every agent of a launch knows. A warp's agent is a multiple of 5; its engines follow.

    Attributes:
        count: Warps and engines; the launches before this one come after them.
        known: By agent, while its block runs.
        places: Block index and warp by warp agent, for messages.
    """

    def __init__(self, warps: int) -> None:
        self.count = AGENTS_PER_WARP * warps
        self.known: dict[int, Stamp] = {}
        self.places: dict[int, tuple[tuple[int, int, int], int]] = {}
        self._issued = [0] * self.count
        self._locations: dict[tuple[int, int], Stamp] = {}

    def start(self, agent: int, block: tuple[int, int, int], warp: int) -> None:
        """Begin a warp, which knows nothing of others."""
        self.known[agent] = np.zeros((2, self.count + 1), dtype=np.int64)
        self.known[agent][0, agent] = 1
        self.places[agent] = (block, warp)

    def stop(self, agent: int) -> None:
        """End a warp; what it did stays in the shadows."""
        del self.known[agent]

    def release(self, agent: int) -> Stamp:
        """What an agent knows now; its later accesses are not part of it."""
        known = self.known[agent]
        stamp = known.copy()
        known[0, agent] += 1
        return stamp

    def acquire(self, agent: int, stamp: Stamp) -> None:
        """Make an agent know all of `stamp`."""
        known = self.known[agent]
        np.maximum(known, stamp, out=known)

    @staticmethod
    def merge(old: Stamp | None, new: Stamp) -> Stamp:
        """All that two stamps know."""
        return new if old is None else np.maximum(old, new)

    def barrier(self, agents: Sequence[int]) -> None:
        """Make each of `agents` know what any of them knows."""
        total = np.maximum.reduce([self.known[agent] for agent in agents])
        for agent in agents:
            known = self.known[agent]
            known[:] = total
            known[0, agent] += 1

    def wait_for_earlier_launches(self, agent: int) -> None:
        """Order what a warp does from now on after the launches before this one."""
        self.known[agent][:, -1] = 1

    def fence_proxy_async(self, agent: int) -> None:
        """Show the async proxy a warp's generic writes, and its `cp.async` that it waited for."""
        known = self.known[agent]
        known[1, agent : agent + 2] = known[0, agent : agent + 2]
        known[0, agent] += 1

    def issue(self, agent: int, engine: Engine) -> Ticket:
        """Start an asynchronous operation of a warp."""
        carrier = agent + _ENGINES[engine]
        self._issued[carrier] += 1
        return Ticket(carrier, self._issued[carrier], self.release(agent))

    @staticmethod
    def finished(ticket: Ticket, *, proxy: Proxy) -> Stamp:
        """What waiting for an operation makes known; `proxy` is the one that it writes through."""
        stamp = ticket.known.copy()
        stamp[0 if proxy == "generic" else slice(None), ticket.agent] = ticket.time
        return stamp

    def atomic(self, agent: int, location: tuple[int, int], *, writes: bool = True) -> None:
        """Order an atomic access of a location after earlier ones, and before later ones."""
        held = self._locations.get(location)
        if held is not None:
            self.acquire(agent, held)
        if writes:
            self._locations[location] = self.release(agent)

    def describe(self, agent: int) -> str:
        """Name an agent."""
        block, warp = self.places[agent - agent % AGENTS_PER_WARP]
        engine = "an asynchronous operation of " if agent % AGENTS_PER_WARP else ""
        return f"{engine}warp {warp} of block {block}"


class Shadow:
    """The last write and the last reads of every byte of a region.

    Cells are addressed in units of 1 to 16 bytes: a row is a byte offset divided by the unit.
    """

    def __init__(self, size_bytes: int, agents: range) -> None:
        """Nothing was touched yet; only `agents` ever touch it."""
        self._size = size_bytes
        self._agents = agents
        self._writes = np.zeros(size_bytes, dtype=np.int64)
        self._write_views: dict[int, np.ndarray[Any, Any]] = {}
        self._last_write = np.zeros(len(agents), dtype=np.int64)
        self._reads: dict[tuple[int, bool], dict[int, np.ndarray[Any, Any]]] = {}
        self._last_read: dict[tuple[int, bool], int] = {}

    def read(self, rows: np.ndarray[Any, Any], unit: int, by: Accessor) -> Conflict | None:
        """Note a read, or tell which write it is not ordered after."""
        conflict = self._unordered_write(rows, unit, by)
        if conflict is None:
            key = (by.agent, by.atomic)
            views = self._reads.get(key)
            if views is None:
                views = self._reads[key] = {1: np.zeros((self._size, 1), dtype=np.int32)}
            cells = views.get(unit)
            if cells is None:
                cells = views[unit] = self._in_units(views[1].reshape(-1), unit)
            cells[rows] = by.time
            self._last_read[key] = by.time
        return conflict

    def write(self, rows: np.ndarray[Any, Any], unit: int, by: Accessor) -> Conflict | None:
        """Note a write, or tell which access it is not ordered after."""
        conflict = self._unordered_write(rows, unit, by) or self._unordered_read(rows, unit, by)
        if conflict is None:
            epoch = by.agent << _SHIFT | by.time
            self._cells(unit)[rows] = epoch | _ATOMIC if by.atomic else epoch
            self._last_write[by.agent - self._agents.start] = by.time
        return conflict

    def touched(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Which bytes were written, and which were read or written: two ``bool[bytes]``."""
        written = self._writes != 0
        touched = written.copy()
        for views in self._reads.values():
            touched |= views[1].reshape(-1) != 0
        return written, touched

    def unordered(self, known: Stamp, own: range) -> int | None:
        """An agent, other than `own`, of an access that `known` does not cover; None if none."""
        late = self._last_write > known[0, self._agents.start : self._agents.stop]
        writers = (self._agents[int(place)] for place in np.flatnonzero(late))
        readers = (agent for (agent, _), last in self._last_read.items() if last > known[0, agent])
        return next((a for a in (*writers, *readers) if a not in own), None)

    def _cells(self, unit: int) -> np.ndarray[Any, Any]:
        cells = self._write_views.get(unit)
        if cells is None:
            cells = self._write_views[unit] = self._in_units(self._writes, unit)
        return cells

    def _in_units(self, flat: np.ndarray[Any, Any], unit: int) -> np.ndarray[Any, Any]:
        return flat[: self._size // unit * unit].reshape(-1, unit)

    def _unordered_write(
        self, rows: np.ndarray[Any, Any], unit: int, by: Accessor
    ) -> Conflict | None:
        known = by.known[self._agents.start : self._agents.stop]
        if not np.count_nonzero(self._last_write > known):
            return None
        cells = self._cells(unit).take(rows, axis=0)
        epochs = cells & ~_ATOMIC
        late = (epochs & _TIMES) > by.known.take(epochs >> _SHIFT)
        if by.atomic:
            late &= cells < _ATOMIC
        if not np.count_nonzero(late):
            return None
        row, byte = np.argwhere(late)[0]
        epoch = int(epochs[row, byte])
        if epoch >> _SHIFT == by.agent and by.agent % AGENTS_PER_WARP and epoch & _TIMES == by.time:
            return None  # one operation of an engine, in several pieces
        where = int(rows[row]) * unit + int(byte)
        return Conflict(where, epoch >> _SHIFT, epoch & _TIMES, wrote=True)

    def _unordered_read(
        self, rows: np.ndarray[Any, Any], unit: int, by: Accessor
    ) -> Conflict | None:
        for key, last in self._last_read.items():
            agent, atomic = key
            if last <= by.known[agent] or (atomic and by.atomic):
                continue
            if agent == by.agent and (agent % AGENTS_PER_WARP == 0 or last == by.time):
                continue
            views = self._reads[key]
            if unit not in views:
                views[unit] = self._in_units(views[1].reshape(-1), unit)
            times = views[unit].take(rows, axis=0)
            if times.max(initial=0) > by.known[agent]:
                row, byte = np.argwhere(times > by.known[agent])[0]
                where = int(rows[row]) * unit + int(byte)
                return Conflict(where, agent, int(times[row, byte]), wrote=False)
        return None
