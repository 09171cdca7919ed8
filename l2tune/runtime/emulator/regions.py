"""Stretches of memory with exact ends: their bytes, which of them were written, and by whom.

A region answers for what lies inside it; which region an address belongs to is `memory`'s concern.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from l2tune.runtime.emulator.earlier import Access, Earlier
from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.races import Accessor, Conflict, Shadow

if TYPE_CHECKING:
    from l2tune.runtime.emulator.warp import Lanes, Warp

Array = np.ndarray[Any, Any]
Kind = Literal["input", "output", "scratch", "shared", "local", "param", "const"]

_UNITS: dict[int, Any] = {
    1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128,
}  # fmt: skip
_READ_ONLY = {"input": "an input", "param": "a parameter", "const": "constant memory"}


class Region:
    """One buffer.

    Attributes:
        name: For messages.
        kind: What it serves as; inputs, parameters and constants are not written.
        size_bytes: Its exact end.
        base: Address of its first byte, for messages.
        data: Its bytes; a caller's own array in the case of global memory.
        written: 1 for each byte that holds a value; None where all do.
        shadow: Who touched it in this launch; None where nothing can race.
        earlier: What launches that may still run do to it; None where all have ended.
    """

    def __init__(
        self, name: str, kind: Kind, data: Array, *, base: int = 0, written: Array | None = None,
        shadow: Shadow | None = None,
    ) -> None:  # fmt: skip
        self.name, self.kind, self.data, self.base = name, kind, data, base
        self.size_bytes = data.size
        self.written = written
        self.shadow = shadow
        self.earlier: Earlier | None = None
        self._views: dict[int, Array] = {}
        self._written_views: dict[int, Array] = {}

    def load(self, warp: Warp, mask: Lanes | None, rows: Array, unit: int, by: Accessor) -> Array:
        """Read units by row (byte offset over unit), as `uint8[rows, unit]`.

        Args:
            warp: Who reads, or issued it.
            mask: The lanes that the rows belong to, or None for an asynchronous operation.
            rows: `int64[rows]`.
            unit: 1, 2, 4, 8 or 16 bytes.
            by: Who reads, for the shadow.

        Raises:
            EmulationStopped: If a byte holds no value, or a write is not ordered before this.
        """
        if self.earlier is not None and not by.waited:
            self._check_earlier(warp, mask, rows, unit, "read")
        if self.shadow is not None:
            conflict = self.shadow.read(rows, unit, by)
            if conflict is not None:
                lanes = _lane(mask, rows, conflict.byte // unit)
                self._stop_conflict(warp, lanes, conflict, by, "read")
        if self.written is not None and self._written(unit).take(rows, axis=0).min(initial=1) == 0:
            self._stop_unwritten(warp, mask, rows, unit)
        return self._units(unit).take(rows).view(np.uint8).reshape(len(rows), unit)

    def claim(self, warp: Warp, mask: Lanes | None, rows: Array, unit: int, by: Accessor) -> None:
        """Note a write by row. Who does not wait for it must not touch these bytes any more.

        Raises:
            EmulationStopped: If the region is read-only, or an access is not ordered before this.
        """
        if self.kind in _READ_ONLY:
            fault = Fault.WRITE_TO_INPUT if self.kind == "input" else Fault.INVALID_USE
            address = self.base + int(rows[0]) * unit
            message = f"{self.name} is {_READ_ONLY[self.kind]} and may not be written"
            warp.stop(fault, message, _lane(mask, rows, int(rows[0])), address=address)
        if self.earlier is not None and not by.waited:
            self._check_earlier(warp, mask, rows, unit, "write")
        if self.shadow is not None:
            conflict = self.shadow.write(rows, unit, by)
            if conflict is not None:
                lanes = _lane(mask, rows, conflict.byte // unit)
                self._stop_conflict(warp, lanes, conflict, by, "write")

    def put(self, rows: Array, data: Array) -> None:
        """Store `uint8[rows, unit]` by row, where a write has been noted."""
        unit = data.shape[-1]
        self._units(unit)[rows] = np.ascontiguousarray(data).view(_UNITS[unit]).reshape(-1)
        if self.written is not None:
            self._written(unit)[rows] = 1

    def _units(self, unit: int) -> Array:
        view = self._views.get(unit)
        if view is None:
            whole = self.data[: self.size_bytes // unit * unit]
            view = self._views[unit] = whole.view(_UNITS[unit])
        return view

    def _written(self, unit: int) -> Array:
        view = self._written_views.get(unit)
        if view is None:
            assert self.written is not None
            whole = self.written[: self.size_bytes // unit * unit]
            view = self._written_views[unit] = whole.reshape(-1, unit)
        return view

    def _stop_unwritten(self, warp: Warp, mask: Lanes | None, rows: Array, unit: int) -> None:
        place, byte = np.argwhere(self._written(unit).take(rows, axis=0) == 0)[0]
        offset = int(rows[place]) * unit + int(byte)
        warp.stop(
            Fault.UNINITIALISED,
            f"byte {offset} of {self.name} is read, but nothing was written there",
            _lane(mask, rows, int(rows[place])),
            address=self.base + offset,
        )

    def _check_earlier(
        self, warp: Warp, mask: Lanes | None, rows: Array, unit: int, what: Access
    ) -> None:
        """Stop if a launch that may still run touches the same bytes."""
        assert self.earlier is not None
        byte = self.earlier.conflict(rows, unit, what)
        if byte is not None:
            theirs = "write" if what == "read" else "use"
            warp.stop(
                Fault.IGNORES_DEPENDENCY,
                f"byte {byte} of {self.name}: the {what} comes before griddepcontrol.wait, and an"
                f" earlier launch may still {theirs} it",
                _lane(mask, rows, byte // unit),
                address=self.base + byte,
            )

    def _stop_conflict(
        self, warp: Warp, mask: Lanes | None, conflict: Conflict, by: Accessor, what: str
    ) -> None:
        clocks = warp.block.machine.clocks
        earlier = f"{'write' if conflict.wrote else 'read'} by {clocks.describe(conflict.agent)}"
        here = f"the {what} by {clocks.describe(by.agent)}"
        where = f"byte {conflict.byte} of {self.name}"
        fault = Fault.SHARED_RACE if self.kind == "shared" else Fault.GLOBAL_RACE
        message = f"{where}: {here} is not ordered after the {earlier}"
        if by.lacks_fence(conflict):
            fault = Fault.MISSING_PROXY_FENCE
            message = f"{where}: {here} needs a fence.proxy.async after the {earlier}"
        warp.stop(fault, message, mask, address=self.base + conflict.byte)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A write under way: its place is taken, its bytes are to come.

    Attributes:
        region: Where.
        rows: By which units it is made up.
        unit: Their bytes.
        by: Who writes.
    """

    region: Region
    rows: Array
    unit: int
    by: Accessor

    def fill(self, data: Array, part: Array | slice = slice(None)) -> None:
        """Store the bytes, or those of a part of the rows."""
        self.region.put(self.rows[part], data.reshape(-1, self.unit))

    def update(self, warp: Warp, change: Callable[[Array], Array]) -> None:
        """Store what `change` makes of the bytes there, `uint8[rows, unit]`; of atomic writes.

        Raises:
            EmulationStopped: If a byte there holds no value.
        """
        self.region.put(
            self.rows, change(self.region.load(warp, None, self.rows, self.unit, self.by))
        )


def _lane(mask: Lanes | None, rows: Array, row: int) -> Lanes | None:
    """The mask of the first lane that touches a row."""
    if mask is None or np.count_nonzero(mask) != len(rows):
        return None
    place = int(np.flatnonzero(rows == row)[0])
    lanes: Lanes = np.arange(len(mask)) == np.flatnonzero(mask)[place]
    return lanes
