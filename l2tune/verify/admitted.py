"""Moves a case to the nearest one that a kernel's contract admits."""

import dataclasses

from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.verify.case import Case

_MULTIPLES = (1, 8, 16, 32, 64, 128, 256)
_MAX_ELEMENTS = 1 << 21
_MAX_PRODUCTS = 1 << 30


def tile_sizes(source: KernelSource) -> tuple[int, ...]:
    """Sizes at which a tiled kernel changes path: around each tile, and a whole pipeline."""
    tiles = {v for name, v in source.tunables.items() if "TILE" in name or "BLOCK" in name}
    stages = max((v for name, v in source.tunables.items() if "STAGES" in name), default=1)
    found = set[int]()
    for tile in tiles:
        found |= {tile - 1, tile, tile + 1, 2 * tile, 2 * tile + 8, 3 * tile, tile * stages + 8}
    return tuple(sorted(size for size in found if size > 0))


def repair(case: Case, source: KernelSource, gpu: Gpu) -> Case | None:
    """The nearest case that the contract admits: padding aligned first, then sizes rounded up.

    Returns:
        None where none of the attempts is admitted, or the case would be too large to be cheap.
    """
    for multiple in _MULTIPLES:
        rounded = dataclasses.replace(
            case, **{name: -(-getattr(case, name) // multiple) * multiple for name in "mnk"}
        )
        for candidate in (rounded, _aligned(rounded, source.layout), _dense(rounded)):
            if _cheap(candidate) and source.accepts(candidate.problem(source.layout), gpu):
                return candidate
    return None


def _aligned(case: Case, layout: str) -> Case:
    """Every row, matrix and start on a 16-byte boundary."""
    (_, inner_a), (_, inner_b) = case.stored(layout)
    pads = [
        _round_up(inner + extra) - inner
        for inner, extra in zip((inner_a, inner_b, case.n), case.pad, strict=True)
    ]
    offsets = [_round_up(value) for value in case.offset]
    return dataclasses.replace(
        case,
        pad=(pads[0], pads[1], pads[2]),
        offset=(offsets[0], offsets[1], offsets[2]),
        gap=_round_up(case.gap),
    )


def _round_up(elements: int) -> int:
    """To a multiple of 16 bytes."""
    return -(-elements // 8) * 8


def _dense(case: Case) -> Case:
    return dataclasses.replace(case, pad=(0, 0, 0), offset=(0, 0, 0), gap=0)


def _cheap(case: Case) -> bool:
    largest = max(case.m * case.k, case.k * case.n, case.m * case.n)
    products = case.m * case.n * case.k * case.batch
    return largest * case.batch <= 4 * _MAX_ELEMENTS and products <= 2 * _MAX_PRODUCTS
