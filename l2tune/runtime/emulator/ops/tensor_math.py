"""How tensor cores add up: products exact, sums cut short, by generation.

One step takes a group of products and the accumulator. All are aligned to the largest exponent
among them, cut to a fixed number of fraction bits towards zero, and added exactly; the sum is cut
to float32, or rounded to nearest for a float16 accumulator. Longer dot products are groups in turn.
Nothing here knows registers or fragments.

Sources: Fasi, Higham, Mikaitis, Pranesh, *Numerical behavior of NVIDIA tensor cores*, PeerJ CS
7:e330 (2021), for alignment, truncation and the generations up to A100; Xie et al., *MMA-Sim:
Bit-Accurate Reference Model of Tensor Cores and Matrix Cores*, arXiv:2511.10909 (2025), for the
numbers of `GENERATIONS` and the treatment of zero, subnormals and NaN, which its authors checked
bit by bit on the cards; Khattak and Mikaitis, *Accurate Models of NVIDIA Tensor Cores*,
arXiv:2512.07004 (2025), for the same by other means.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class TensorCore:
    """The arithmetic of one generation for 16-bit operands.

    Attributes:
        fraction_bits: Kept of each addend below the largest exponent; 23 would be float32's own.
        group: Products that are added in one step.
        exact: Add in float64 and round once, whatever the rest says.
    """

    fraction_bits: int
    group: int
    exact: bool = False


GENERATIONS = {
    "sm_70": TensorCore(fraction_bits=23, group=4),
    "sm_75": TensorCore(fraction_bits=24, group=8),
    "sm_80": TensorCore(fraction_bits=24, group=8),
    "sm_86": TensorCore(fraction_bits=24, group=8),
    "sm_89": TensorCore(fraction_bits=24, group=8),
    "sm_90": TensorCore(fraction_bits=25, group=16),
    "sm_90a": TensorCore(fraction_bits=25, group=16),
}
"""By PTX target; `mma` and `wgmma` share it. MMA-Sim, tables `F` and `L_max`."""

EXACT = TensorCore(fraction_bits=0, group=0, exact=True)
"""Sums without the hardware's losses, for telling those from a kernel's own."""

_ZERO, _NOT_FINITE = -1000, 5000
"""Stand for the exponents of zero and of infinities and NaN: below and above any other."""

_LOWEST = -126
"""No group is aligned lower: zeros count as having float32's least exponent."""

_REACH = -80, 100
"""Exponents at which products and scales stay normal float32 numbers. Below, f16 products are 0."""

_LARGE = 2048
"""Results from which going through k one by one keeps the numbers in cache and is faster."""


@functools.cache
def _tables(element: str) -> tuple[Array, Array]:
    """Value (float32, NaN and infinity as 0) and exponent (int16) of every 16-bit pattern."""
    bits = np.arange(65536, dtype=np.uint32)
    fraction, bias = (10, 15) if element == "f16" else (7, 127)
    field = bits >> fraction & (2 * bias + 1)
    exponent = (np.maximum(field, 1).astype(np.int16) - bias).astype(np.int16)
    values = values_of(bits.astype(np.uint16), element)
    values[field == 2 * bias + 1] = 0
    exponent[values == 0] = _ZERO
    exponent[field == 2 * bias + 1] = _NOT_FINITE
    return values, exponent


@functools.cache
def _powers(fraction_bits: int) -> tuple[Array, Array, Array]:
    """``2**(F - e)`` as float32 (in reach) and float64, and ``2**(e - F)``, by e from -126 on."""
    exponents = np.arange(_LOWEST, 300)
    down = np.ldexp(1.0, exponents - fraction_bits)
    up = np.ldexp(1.0, fraction_bits - exponents)
    return np.ldexp(1.0, fraction_bits - np.clip(exponents, *_REACH)).astype(np.float32), up, down


def values_of(bits: Array, element: str) -> Array:
    """16-bit or float32 patterns as float32 values."""
    if element == "f32":
        return bits.view(np.float32)
    if element == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def dot_accumulate(
    a: Array, b: Array, c: Array, *, element: str, accumulator: str, core: TensorCore
) -> Array:
    """``a @ b + c`` as a tensor core computes it.

    Args:
        a: ``[M, K]`` bits, uint16.
        b: ``[K, N]`` bits, uint16.
        c: ``[M, N]`` bits, uint32 for an f32 accumulator, uint16 for f16.
        element: `f16` or `bf16`.
        accumulator: `f32` or `f16`; also the type of the result.
        core: The arithmetic; from `GENERATIONS`, or `EXACT`.

    Returns:
        ``[M, N]`` bits of the accumulator's type.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if core.exact:
            return _special(a, b, c, element, accumulator)
        values, exponents = _tables(element)
        at, starts = a.T, range(0, a.shape[1], core.group)
        whole = _Operands(values.take(at), values.take(b), exponents.take(at), exponents.take(b))
        for start in starts:
            piece = slice(start, start + core.group)
            d, special = _step(whole, piece, c, element, accumulator, core.fraction_bits)
            if special is not None:
                exact = _special(a[:, piece], b[piece], c, element, accumulator)
                d[special] = exact[special]
            c = d
    return c


@dataclasses.dataclass(frozen=True, slots=True)
class _Operands:
    """A, k first, and B: values and exponents."""

    value_a: Array
    value_b: Array
    exponent_a: Array
    exponent_b: Array


def _step(
    operands: _Operands, piece: slice, c: Array, element: str, accumulator: str, bits: int
) -> tuple[Array, Array | None]:
    """One group: the sums, and where they are not to be used since an operand is not finite."""
    # The upper half of a float32 has the exponent of a bfloat16.
    upper = c >> 16 if accumulator == "f32" else c
    c_exponent = _tables("bf16" if accumulator == "f32" else "f16")[1].take(upper)
    top = _largest(operands.exponent_a[piece], operands.exponent_b[piece])
    top = np.maximum(np.maximum(top, c_exponent), _LOWEST)
    highest, lowest = int(top.max()), int(top.min())
    special = None
    if highest >= _NOT_FINITE + _ZERO:
        special = top >= _NOT_FINITE + _ZERO
        top[special] = 0
        highest = int(top.max())
    index = top - _LOWEST
    narrow, up, down = _powers(bits)
    value_a, value_b = operands.value_a[piece], operands.value_b[piece]
    if highest <= _REACH[1] and (lowest >= _REACH[0] or element == "f16"):
        total = _aligned(value_a, value_b, narrow.take(index), np.int32)
    else:
        wide_a, wide_b = value_a.astype(np.float64), value_b.astype(np.float64)
        total = _aligned(wide_a, wide_b, up.take(index), np.int64)
    addend = values_of(c, accumulator).astype(np.float64)
    if special is not None:
        addend[special] = 0
    sums = (total + np.trunc(addend * up.take(index))) * down.take(index)
    return (
        _float16(sums) if accumulator == "f16" else _float32_towards_zero(sums, lowest)
    ), special


def _largest(a: Array, b: Array) -> Array:
    """``max over k of a[k, m] + b[k, n]``, both given k first."""
    if a.shape[1] * b.shape[1] < _LARGE:
        return np.asarray((a[:, :, None] + b[:, None, :]).max(axis=0))
    top = a[0][:, None] + b[0]
    scratch = np.empty_like(top)
    for k in range(1, a.shape[0]):
        np.add(a[k][:, None], b[k], out=scratch)
        np.maximum(top, scratch, out=top)
    return np.asarray(top)


def _aligned(a: Array, b: Array, scale: Array, integer: type) -> Array:
    """Sum over k of products in units of the last kept bit, each cut towards zero.

    16 products below 4 at 25 bits stay below 2**31: significands end short of 2.
    """
    if scale.size < _LARGE:
        return np.asarray(
            ((a[:, :, None] * b[:, None, :]) * scale).astype(integer).sum(axis=0, dtype=integer)
        )
    total: Array = np.zeros(scale.shape, dtype=integer)
    product, cut = np.empty_like(scale), np.empty_like(total)
    for k in range(a.shape[0]):
        np.multiply(a[k][:, None], b[k], out=product)
        np.multiply(product, scale, out=product)
        np.copyto(cut, product, casting="unsafe")
        np.add(total, cut, out=total)
    return total


def _float32_towards_zero(sums: Array, lowest: int) -> Array:
    """Bits of float64 values cut to float32; beyond its range they become infinite."""
    if lowest < -100:
        small = np.abs(sums) < 2.0**_LOWEST
        sums[small] = np.trunc(sums[small] * 2.0**149) * 2.0**-149
    cut = (sums.view(np.int64) & ~((1 << 29) - 1)).view(np.float64)
    # A sum of nothing but zeros is +0.
    return (cut.astype(np.float32) + np.float32(0)).view(np.uint32)


def _float16(sums: Array) -> Array:
    """Bits of float64 values rounded to the nearest float16."""
    return (sums.astype(np.float16) + np.float16(0)).view(np.uint16)


def _special(a: Array, b: Array, c: Array, element: str, accumulator: str) -> Array:
    """The float64 sum, rounded once; NaN is the one pattern that tensor cores return."""
    left, right = values_of(a, element), values_of(b, element)
    products = left.astype(np.float64)[:, :, None] * right.astype(np.float64)[None]
    sums = products.sum(axis=1) + values_of(c, accumulator).astype(np.float64)
    if accumulator == "f16":
        return np.where(np.isnan(sums), np.uint16(0x7FFF), _float16(sums))
    rounded = (sums.astype(np.float32) + np.float32(0)).view(np.uint32)
    return np.where(np.isnan(sums), np.uint32(0x7FFFFFFF), rounded)
