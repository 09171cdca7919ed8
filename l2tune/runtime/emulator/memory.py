"""Loads, stores and atomics of warps, and the row-wise accesses of asynchronous operations.

`places` finds the region of an address, `regions` checks values and races; here the two meet. A
warp whose lanes all fall into one region is the quick case, else the lanes go one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from l2tune.runtime.emulator.buffers import GlobalMemory
from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.places import Places, one_lane
from l2tune.runtime.emulator.program import WARP_LANES
from l2tune.runtime.emulator.races import Accessor, Proxy, Shadow, Ticket
from l2tune.runtime.emulator.regions import Array, Claim, Region
from l2tune.runtime.emulator.warp import FULL, Lanes

if TYPE_CHECKING:
    from l2tune.runtime.emulator.block import Block
    from l2tune.runtime.emulator.machine import Machine
    from l2tune.runtime.emulator.warp import Warp

__all__ = ["GlobalMemory", "Memory", "SharedMemory"]

_UNIT_BYTES = 16


class SharedMemory:
    """A block's shared memory.

    Attributes:
        region: Its bytes.
        offsets: Of the variables, by name.
    """

    def __init__(self, size_bytes: int, offsets: dict[str, int], agents: range) -> None:
        """Nothing in it is written yet; the warps and engines of the cluster are `agents`."""
        data = np.zeros(size_bytes, dtype=np.uint8)
        shadow = Shadow(size_bytes, agents)
        self.region = Region(
            "shared memory", "shared", data, written=np.zeros_like(data), shadow=shadow
        )
        self.offsets = offsets


class Memory:
    """All memory of a launch, as its warps see it.

    Attributes:
        changed: Atomic operations that stored something else than what was there.
    """

    def __init__(self, machine: Machine, places: Places) -> None:
        self._machine, self.places = machine, places
        self.changed = 0

    def load(
        self, warp: Warp, mask: Lanes, space: str, addresses: Lanes, size_bytes: int, *,
        atomic: bool = False,
    ) -> Array:  # fmt: skip
        """Read `size_bytes` at each active lane's address, as `uint8[32, size_bytes]`.

        Args:
            warp: Who reads.
            mask: Active lanes; the rows of others are 0.
            space: As in the instruction, or `generic`.
            addresses: `uint64[32]`.
            size_bytes: A power of two up to 16.
            atomic: Whether the access is a strong one, that synchronises.

        Raises:
            EmulationStopped: As places and regions find.
        """
        wanted = addresses if mask is FULL else addresses[mask]
        found = self.places.find(warp, mask, space, wanted, size_bytes)
        if found is None:
            result = np.zeros((WARP_LANES, size_bytes), dtype=np.uint8)
            for place, lane in enumerate(np.flatnonzero(mask)):
                one = one_lane(mask, place)
                part = self.load(warp, one, space, addresses, size_bytes, atomic=atomic)
                result[lane] = part[lane]
            return result
        region, rows, where = found
        self._count(warp, where, wanted, size_bytes)
        if atomic:
            self._synchronise(warp, region, np.unique(rows) * size_bytes, writes=False)
        by = self._by(warp, None, atomic=atomic)
        data = region.load(warp, mask, rows, size_bytes, by)
        return data if mask is FULL else _spread(data, mask)

    def store(
        self, warp: Warp, mask: Lanes, space: str, addresses: Lanes, data: Array, *,
        atomic: bool = False,
    ) -> None:  # fmt: skip
        """Write a row of `data` (`uint8[32, size_bytes]`) at each active lane's address.

        Where lanes of one store meet at an address, the highest lane's value stays.

        Raises:
            EmulationStopped: As places and regions find.
        """
        size_bytes = data.shape[1]
        wanted = addresses if mask is FULL else addresses[mask]
        found = self.places.find(warp, mask, space, wanted, size_bytes)
        if found is None:
            for place in range(len(wanted)):
                one = one_lane(mask, place)
                self.store(warp, one, space, addresses, data, atomic=atomic)
            return
        region, rows, where = found
        self._count(warp, where, wanted, size_bytes)
        by = self._by(warp, None, atomic=atomic)
        region.claim(warp, mask, rows, size_bytes, by)
        region.put(rows, data if mask is FULL else data[mask])
        if atomic:
            self._synchronise(warp, region, np.unique(rows) * size_bytes, writes=True)

    def claim(
        self, warp: Warp, mask: Lanes, space: str, addresses: Lanes, size_bytes: int, *,
        ticket: Ticket,
    ) -> Claim:  # fmt: skip
        """Begin to write `size_bytes` at each active lane's address, a row a lane.

        Raises:
            EmulationStopped: As places and regions find.
        """
        wanted = addresses[mask]
        found = self.places.find(warp, mask, space, wanted, size_bytes)
        if found is None:
            for place in range(len(wanted)):  # one of them is out of bounds, and is named
                one = one_lane(mask, place)
                self.places.find(warp, one, space, wanted[place : place + 1], size_bytes)
        assert found is not None
        region, rows, where = found
        self._count(warp, where, wanted, size_bytes)
        by = self._by(warp, ticket)
        region.claim(warp, mask, rows, size_bytes, by)
        return Claim(region, rows, size_bytes, by)

    def atomic(
        self, warp: Warp, mask: Lanes, space: str, addresses: Lanes, size_bytes: int,
        function: Callable[[Array, int], Array],
    ) -> Array:  # fmt: skip
        """Read, change and write each active lane's location, in the order of the lanes.

        Args:
            warp: Who.
            mask: Active lanes.
            space: As in the instruction, or `generic`.
            addresses: `uint64[32]`.
            size_bytes: A power of two up to 16.
            function: From `uint8[1, size_bytes]` and a lane to what is stored.

        Returns:
            What each lane found, `uint8[32, size_bytes]`.

        Raises:
            EmulationStopped: As places and regions find.
        """
        result = np.zeros((WARP_LANES, size_bytes), dtype=np.uint8)
        for place, lane in enumerate(np.flatnonzero(mask)):
            one, address = one_lane(mask, place), addresses[lane : lane + 1]
            found = self.places.find(warp, one, space, address, size_bytes)
            assert found is not None  # one lane is in one region, or has stopped
            region, rows, where = found
            self._count(warp, where, address, size_bytes)
            self._synchronise(warp, region, rows * size_bytes, writes=False)
            by = self._by(warp, None, atomic=True)
            old = region.load(warp, one, rows, size_bytes, by)
            new = function(old, int(lane))
            region.claim(warp, one, rows, size_bytes, by)
            region.put(rows, new)
            self.changed += new.tobytes() != old.tobytes()
            self._synchronise(warp, region, rows * size_bytes, writes=True)
            result[lane] = old[0]
        return result

    def read_shared(
        self, warp: Warp, block: Block, offsets: Array, size_bytes: int, *,
        ticket: Ticket | None, proxy: Proxy = "async",
    ) -> Array:  # fmt: skip
        """Read `size_bytes` at each of `offsets` (`int64[n]`) of a block's shared memory.

        Args:
            warp: Who issued it.
            block: Whose memory.
            offsets: Each a multiple of the largest power of two, up to 16, in `size_bytes`.
            size_bytes: Of each row.
            ticket: The asynchronous operation, or None for the warp itself.
            proxy: Through which it reads.

        Raises:
            EmulationStopped: As the region finds.
        """
        region = block.shared.region
        rows, unit = self._rows(warp, region, 0, offsets, size_bytes)
        by = self._by(warp, ticket, row=1 if proxy == "async" else 0)
        return region.load(warp, None, rows, unit, by).reshape(len(offsets), size_bytes)

    def write_shared(
        self, warp: Warp, block: Block, offsets: Array, data: Array, *, ticket: Ticket | None
    ) -> None:
        """Write rows of `uint8[n, size_bytes]`; otherwise as `read_shared`."""
        self.claim_shared(warp, block, offsets, data.shape[1], ticket=ticket).fill(data)

    def claim_shared(
        self, warp: Warp, block: Block, offsets: Array, size_bytes: int, *, ticket: Ticket | None,
        atomic: bool = False,
    ) -> Claim:  # fmt: skip
        """Begin to write what `fill` will bring; otherwise as `read_shared`."""
        region = block.shared.region
        rows, unit = self._rows(warp, region, 0, offsets, size_bytes)
        by = self._by(warp, ticket, atomic=atomic)
        region.claim(warp, None, rows, unit, by)
        return Claim(region, rows, unit, by)

    def read_global(
        self, warp: Warp, addresses: Array, size_bytes: int, *, ticket: Ticket | None,
        proxy: Proxy = "async",
    ) -> Array:  # fmt: skip
        """Read `size_bytes` at each of `addresses` (`uint64[n]`), all of one buffer."""
        region, base = self._buffer(warp, addresses)
        offsets = (addresses - np.uint64(base)).view(np.int64)
        rows, unit = self._rows(warp, region, base, offsets, size_bytes)
        by = self._by(warp, ticket, row=1 if proxy == "async" else 0)
        return region.load(warp, None, rows, unit, by).reshape(len(offsets), size_bytes)

    def write_global(
        self, warp: Warp, addresses: Array, data: Array, *, ticket: Ticket | None
    ) -> None:
        """Write rows of `uint8[n, size_bytes]` at `addresses`, all of one buffer."""
        self.claim_global(warp, addresses, data.shape[1], ticket=ticket).fill(data)

    def claim_global(
        self, warp: Warp, addresses: Array, size_bytes: int, *, ticket: Ticket | None,
        atomic: bool = False,
    ) -> Claim:  # fmt: skip
        """Begin to write what `fill` will bring; otherwise as `read_global`."""
        region, base = self._buffer(warp, addresses)
        offsets = (addresses - np.uint64(base)).view(np.int64)
        rows, unit = self._rows(warp, region, base, offsets, size_bytes)
        by = self._by(warp, ticket, atomic=atomic)
        region.claim(warp, None, rows, unit, by)
        return Claim(region, rows, unit, by)

    def shared_target(self, warp: Warp, space: str, address: int) -> tuple[Block, int]:
        """The block and offset that a shared-memory address means to a warp."""
        return self.places.shared_target(warp, space, address)

    def _buffer(self, warp: Warp, addresses: Array) -> tuple[Region, int]:
        lowest = int(addresses.min())
        found = self.places.buffers.nearest(lowest)
        if found is None:
            warp.stop(Fault.OUT_OF_BOUNDS, f"no memory is mapped at {lowest:#x}", address=lowest)
        assert found is not None
        return found

    def _rows(
        self, warp: Warp, region: Region, base: int, offsets: Array, size_bytes: int
    ) -> tuple[Array, int]:
        """Rows of the units that make up pieces of a region, and the unit."""
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high > region.size_bytes - size_bytes:
            at = base + (low if low < 0 else high)
            warp.stop(
                Fault.OUT_OF_BOUNDS,
                f"{size_bytes} bytes at {at:#x} do not lie inside {region.name}"
                f" ({region.size_bytes} bytes at {base:#x})",
                address=at,
            )
        bits = int(np.bitwise_or.reduce(offsets)) | size_bytes | _UNIT_BYTES
        unit = bits & -bits
        first = offsets // unit
        count = size_bytes // unit
        return (first if count == 1 else (first[:, None] + np.arange(count)).reshape(-1)), unit

    def _by(
        self, warp: Warp, ticket: Ticket | None, *, row: int = 0, atomic: bool = False
    ) -> Accessor:
        if ticket is not None:
            return Accessor(ticket.agent, ticket.time, ticket.known[row], ticket.known[0], atomic)
        known = self._machine.clocks.known[warp.agent]
        return Accessor(warp.agent, int(known[0, warp.agent]), known[row], known[0], atomic)

    def _count(self, warp: Warp, space: str, addresses: Lanes, size_bytes: int) -> None:
        if space in ("shared", "global") and warp.instruction is not None:
            self._machine.statistics.access(warp.instruction, space, addresses, size_bytes)

    def _synchronise(self, warp: Warp, region: Region, offsets: Array, *, writes: bool) -> None:
        for offset in offsets.tolist():
            self._machine.clocks.atomic(warp.agent, (id(region), offset), writes=writes)


def _spread(data: Array, mask: Lanes) -> Array:
    result = np.zeros((WARP_LANES, data.shape[1]), dtype=np.uint8)
    result[mask] = data
    return result
