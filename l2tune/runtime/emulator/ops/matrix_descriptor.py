"""Shared-memory matrix descriptors of `wgmma`: which 16-byte chunks an operand is made of.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix Descriptor Format".
A chunk is 8 elements: along k where the operand is K-major, along m or n where it is MN-major.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from l2tune.runtime.emulator.ops.tensor_map import CHUNK_BYTES

Array = np.ndarray[Any, Any]

_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}
_ROW = 8
"""Rows of a core matrix."""
_DEPTH = 16
"""k of one instruction, for 16-bit elements."""


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """A decoded descriptor.

    Attributes:
        start: Offset in shared memory.
        leading: Leading dimension byte offset.
        stride: Stride dimension byte offset.
        base: Matrix base offset, in rows of 128 bytes.
        swizzle: Bytes, 0 for none.
    """

    start: int
    leading: int
    stride: int
    base: int
    swizzle: int

    @classmethod
    def decode(cls, bits: int) -> "Descriptor":
        """From the 64 bits that the instruction takes."""
        return cls(
            start=(bits & 0x3FFF) << 4,
            leading=(bits >> 16 & 0x3FFF) << 4,
            stride=(bits >> 32 & 0x3FFF) << 4,
            base=bits >> 49 & 7,
            swizzle=_SWIZZLES[bits >> 62 & 3],
        )

    @property
    def misplaced_rows(self) -> int:
        """By how many 128-byte rows the start is off the beginning of a swizzle pattern.

        The pattern repeats every 8 * swizzle bytes; a start inside it must be named by the base
        offset. A start inside the first row is a step along the row.
        """
        rows = self.swizzle // CHUNK_BYTES
        return ((self.start >> 7) - self.base) % rows if rows else 0


@functools.lru_cache(maxsize=1024)
def chunk_steps(extent: int, *, mn_major: bool, swizzle: int, leading: int, stride: int) -> Array:
    """Bytes from the start of each chunk, before the swizzle.

    Args:
        extent: Of m or n.
        mn_major: Whether chunks lie along m or n.
        swizzle: Bytes.
        leading: Leading dimension byte offset.
        stride: Stride dimension byte offset.

    Returns:
        K-major: ``[extent, 2]``, by row and half of k. MN-major: ``[extent / 8, 16]``, by chunk of
        m or n and by k.
    """
    if not mn_major:
        row, half = np.indices((extent, _DEPTH // _ROW))
        across = half * (CHUNK_BYTES if swizzle else leading)
        return np.asarray(row // _ROW * stride + row % _ROW * (swizzle or CHUNK_BYTES) + across)
    chunk, depth = np.indices((extent // _ROW, _DEPTH))
    if not swizzle:
        return np.asarray(chunk * stride + depth // _ROW * leading + depth % _ROW * CHUNK_BYTES)
    in_row = swizzle // CHUNK_BYTES
    return np.asarray(
        chunk // in_row * leading + chunk % in_row * CHUNK_BYTES
        + depth // _ROW * stride + depth % _ROW * swizzle
    )  # fmt: skip


def chunk_offsets(descriptor: Descriptor, extent: int, *, mn_major: bool) -> Array:
    """Offset in shared memory of each chunk, shaped as by `chunk_steps`.

    The swizzle XORs chunk numbers with row numbers of 128 bytes, counted from the base offset.
    """
    steps = chunk_steps(
        extent,
        mn_major=mn_major,
        swizzle=descriptor.swizzle,
        leading=descriptor.leading,
        stride=descriptor.stride,
    )
    linear = descriptor.start + steps
    mask = descriptor.swizzle // CHUNK_BYTES - 1 if descriptor.swizzle else 0
    return np.asarray(linear ^ (((linear >> 7) - descriptor.base & mask) << 4))


def matrix_from(chunks: Array, extent: int, *, mn_major: bool) -> Array:
    """The operand as ``[extent, 16]`` uint16, from its chunks as bytes in `chunk_steps` order."""
    elements = np.ascontiguousarray(chunks).view(np.uint16)
    if not mn_major:
        return np.asarray(elements.reshape(extent, _DEPTH))
    return np.asarray(
        elements.reshape(extent // _ROW, _DEPTH, _ROW).transpose(0, 2, 1).reshape(extent, _DEPTH)
    )
