"""Tensor maps, and where the elements of a box lie in global and in shared memory.

What a driver packs into 128 opaque bytes is here an object; a kernel's parameter holds a handle to
it. Tile mode without interleave, 16-bit elements by default. CUDA Driver API,
`cuTensorMapEncodeTiled`, for the limits; PTX ISA, "Tensors: Swizzling modes", for the layout.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np

from l2tune.spec.geometry import MapGeometry

Array = np.ndarray[Any, Any]

CHUNK_BYTES = 16
"""What a swizzle moves as a whole."""

_MAX_RANK, _MAX_BOX = 5, 256


def swizzled(addresses: Array, swizzle: int) -> Array:
    """Where a byte lies that would be at an address without swizzle.

    Address bits from 4 up are XORed with as many from 7 up: 3 bits for 128 bytes, 2 for 64, 1 for
    32. It is its own inverse.

    Args:
        addresses: In shared memory.
        swizzle: 0, 32, 64 or 128.
    """
    mask = swizzle // CHUNK_BYTES - 1 if swizzle else 0
    return np.asarray(addresses ^ ((addresses >> 7 & mask) << 4))


@dataclasses.dataclass(frozen=True)
class Rows:
    """The part of a box that lies inside the tensor.

    Attributes:
        rows: Numbers of the box's rows that lie inside, int64.
        addresses: Of the first inner byte inside, for each of them, uint64.
        first_byte: In a row of the box, of the part inside.
        end_byte: Past that part.
    """

    rows: Array
    addresses: Array
    first_byte: int
    end_byte: int


@dataclasses.dataclass(frozen=True)
class EmulatedMap:
    """A tensor map; dimensions innermost first.

    Attributes:
        address: Of the tensor, global.
        sizes: Elements of each dimension, 1 to 5 of them.
        strides_bytes: Of the outer dimensions.
        box: Elements of each dimension.
        swizzle: Bytes, 0 for none.
        element_bytes: 1, 2, 4 or 8.
    """

    address: int
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    element_bytes: int = 2

    def __post_init__(self) -> None:
        """Refuse what `cuTensorMapEncodeTiled` refuses.

        Raises:
            ValueError: If it does.
        """
        inner = self.row_bytes
        wrong = {
            f"{len(self.sizes)} dimensions": not 1 <= len(self.sizes) <= _MAX_RANK
            or not len(self.sizes) == len(self.box) == len(self.strides_bytes) + 1,
            f"address {self.address:#x}": self.address % CHUNK_BYTES != 0,
            f"strides {self.strides_bytes}": any(s % CHUNK_BYTES for s in self.strides_bytes),
            f"sizes {self.sizes}": min(self.sizes) < 1 or max(self.sizes) > 1 << 32,
            f"box {self.box}": min(self.box) < 1 or max(self.box) > _MAX_BOX,
            f"rows of {inner} bytes": inner % CHUNK_BYTES != 0,
            f"rows of {inner} bytes with swizzle {self.swizzle}": self.swizzle not in (0, inner),
        }
        found = [what for what, holds in wrong.items() if holds]
        if found:
            raise ValueError(f"tensor map: {', '.join(found)} cannot be encoded or emulated")

    @classmethod
    def of(cls, geometry: MapGeometry, address: int) -> "EmulatedMap":
        """The map that a contract's table describes, of a tensor at an address."""
        return cls(address, geometry.sizes, geometry.strides_bytes, geometry.box, geometry.swizzle)

    @property
    def row_bytes(self) -> int:
        """Of a row of the box, in shared memory."""
        return self.box[0] * self.element_bytes

    @property
    def box_bytes(self) -> int:
        """What a load brings, zeros included."""
        return self.row_bytes * self.row_count

    @property
    def row_count(self) -> int:
        """Rows of the box."""
        return int(np.prod(self.box[1:], dtype=np.int64))

    def rows_inside(self, coordinates: tuple[int, ...]) -> Rows | None:
        """The part of the box at `coordinates` that lies inside the tensor, if any."""
        first = max(0, -coordinates[0])
        end = min(self.box[0], self.sizes[0] - coordinates[0])
        numbers, starts = [], []
        outer = [range(extent) for extent in reversed(self.box[1:])]
        for number, place in enumerate(itertools.product(*outer)):
            where = [c + p for c, p in zip(coordinates[1:], reversed(place), strict=True)]
            if all(0 <= w < s for w, s in zip(where, self.sizes[1:], strict=True)):
                numbers.append(number)
                starts.append(sum(w * s for w, s in zip(where, self.strides_bytes, strict=True)))
        if first >= end or not numbers:
            return None
        begin = self.address + (coordinates[0] + first) * self.element_bytes
        return Rows(
            np.array(numbers),
            np.array(starts, dtype=np.uint64) + np.uint64(begin),
            first * self.element_bytes,
            end * self.element_bytes,
        )

    def chunk_offsets(self, start: int) -> Array:
        """Where each 16-byte chunk of the box lies in shared memory, row by row.

        Args:
            start: Offset of the box.

        Returns:
            ``[rows, row_bytes / 16]`` int64.
        """
        linear = start + np.arange(0, self.box_bytes, CHUNK_BYTES).reshape(self.row_count, -1)
        return swizzled(linear, self.swizzle)
