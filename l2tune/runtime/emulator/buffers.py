"""Global memory: buffers with exact ends, which live across launches."""

from __future__ import annotations

import bisect

import numpy as np

from l2tune.runtime.emulator.earlier import Earlier
from l2tune.runtime.emulator.races import Shadow
from l2tune.runtime.emulator.regions import Array, Kind, Region
from l2tune.runtime.emulator.spaces import GLOBAL

_GAP_BYTES = 1 << 20


class GlobalMemory:
    """Buffers in the order of their addresses, with at least a megabyte of nothing between them."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._bases: list[int] = []
        self._next = GLOBAL
        self._strangers = True  # may launches that are none of ours still run?

    def add(self, name: str, array: Array, *, kind: Kind, initialised: bool | Array = True) -> int:
        """Map an array of bytes and return its address.

        Args:
            name: For messages.
            array: `uint8`, one-dimensional and contiguous; stores go into it.
            kind: `input`, `output` or `scratch`.
            initialised: Whether its bytes may be read before they are written, or which.
        """
        if isinstance(initialised, bool):
            written = None if initialised else np.zeros(array.size, dtype=np.uint8)
        else:
            written = initialised.astype(np.uint8)
        address = self._next
        self.regions.append(Region(name, kind, array, base=address, written=written))
        self._bases.append(address)
        self._next += -(-(array.size + _GAP_BYTES) // _GAP_BYTES) * _GAP_BYTES
        return address

    def address(self, name: str) -> int | None:
        """Where a buffer lies, or None."""
        for base, region in zip(self._bases, self.regions, strict=True):
            if region.name == name:
                return base
        return None

    def nearest(self, address: int) -> tuple[Region, int] | None:
        """The last buffer that starts at or below an address, with its own."""
        index = bisect.bisect_right(self._bases, address) - 1
        return None if index < 0 else (self.regions[index], self._bases[index])

    def begin_launch(self, agents: int, *, overlaps: bool = False) -> None:
        """Forget who touched what.

        Args:
            agents: Warps and engines of the new launch.
            overlaps: Whether it starts before the launch ahead of it has ended; what that one
                touched is kept, or, for the first launch, everything.
        """
        self._strangers = self._strangers and overlaps
        for region in self.regions:
            if not overlaps:
                region.earlier = None
            elif self._strangers:
                region.earlier = Earlier.everything(region.size_bytes)
            else:
                known = region.earlier or Earlier.nothing(region.size_bytes)
                region.earlier = known.joined(region.shadow)
            if region.kind != "input":
                region.shadow = Shadow(region.size_bytes, range(agents))
