"""Special registers: where a thread stands in the launch, and clocks that count steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from l2tune.runtime.emulator.program import WARP_LANES
from l2tune.runtime.emulator.warp import Lanes

if TYPE_CHECKING:
    from l2tune.runtime.emulator.machine import Machine
    from l2tune.runtime.emulator.warp import Warp

Triple = tuple[int, int, int]

_AXES = {"x": 0, "y": 1, "z": 2}
_EPOCH_NS = 1_700_000_000_000_000_000
_LANE = np.arange(WARP_LANES, dtype=np.uint64)
_BIT = np.uint64(1) << _LANE
_LANE_MASKS = {
    "%lanemask_eq": _BIT,
    "%lanemask_lt": _BIT - np.uint64(1),
    "%lanemask_le": 2 * _BIT - np.uint64(1),
    "%lanemask_gt": ~(2 * _BIT - np.uint64(1)) & np.uint64(0xFFFFFFFF),
    "%lanemask_ge": ~(_BIT - np.uint64(1)) & np.uint64(0xFFFFFFFF),
}


def special(name: str, warp: Warp, machine: Machine) -> Lanes:
    """The lanes of a special register, uint32 or (times) uint64.

    Raises:
        KeyError: If there is none of this name.
    """
    known = warp.specials.get(name)
    if known is not None:
        return known
    steps = machine.statistics.steps
    if name in ("%clock", "%clock_hi"):
        value = steps if name == "%clock" else steps >> 32
        return np.full(WARP_LANES, value & 0xFFFFFFFF, dtype=np.uint32)
    if name in ("%clock64", "%globaltimer"):
        value = steps + (_EPOCH_NS if name == "%globaltimer" else 0)
        return np.full(WARP_LANES, value, dtype=np.uint64)
    lanes = _fixed(name, warp, machine)
    lanes.setflags(write=False)
    warp.specials[name] = lanes
    return lanes


def _fixed(name: str, warp: Warp, machine: Machine) -> Lanes:
    if name in _LANE_MASKS:
        return _LANE_MASKS[name].astype(np.uint32)
    if name == "%laneid":
        return _LANE.astype(np.uint32)
    register, _, axis = name.partition(".")
    if register == "%tid":
        linear, (x, y, _) = warp.threads, machine.block
        parts = (linear % x, linear // x % y, linear // (x * y))
        return parts[_AXES[axis]].astype(np.uint32)
    if axis:
        return np.full(WARP_LANES, _triples(warp, machine)[register][_AXES[axis]], dtype=np.uint32)
    if name == "%gridid":
        return np.ones(WARP_LANES, dtype=np.uint64)
    return np.full(WARP_LANES, _scalars(warp, machine)[name], dtype=np.uint32)


def _triples(warp: Warp, machine: Machine) -> dict[str, Triple]:
    index, cluster = warp.block.index, machine.cluster
    inside = _each(lambda i, c: i % c, index, cluster)
    return {
        "%ntid": machine.block,
        "%ctaid": index,
        "%nctaid": machine.grid,
        "%clusterid": _each(lambda i, c: i // c, index, cluster),
        "%nclusterid": _each(lambda i, c: i // c, machine.grid, cluster),
        "%cluster_ctaid": inside,
        "%cluster_nctaid": cluster,
    }


def _scalars(warp: Warp, machine: Machine) -> dict[str, int]:
    x, y, z = machine.cluster
    total = machine.image.shared_bytes
    return {
        "%warpid": warp.index,
        "%nwarpid": 64,
        "%smid": machine.slot(warp.block),
        "%nsmid": machine.sms,
        "%cluster_ctarank": warp.block.rank,
        "%cluster_nctarank": x * y * z,
        "%is_explicit_cluster": int(machine.cluster != (1, 1, 1)),
        "%dynamic_smem_size": machine.smem_bytes,
        "%total_smem_size": total,
        "%aggr_smem_size": total,
        "%reserved_smem_offset_0": 0,
        "%current_graph_exec": 0,
    } | {f"%envreg{i}": 0 for i in range(32)}


def _each(function: Callable[[int, int], int], first: Triple, second: Triple) -> Triple:
    x, y, z = (function(a, b) for a, b in zip(first, second, strict=True))
    return x, y, z
