"""Moves a case to the nearest one that a kernel's contract admits."""

import dataclasses
from collections.abc import Iterator

from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.verify.case import Case

_MULTIPLES = (1, 8, 16, 32, 64, 128, 256)
_FEW = (16, 8, 4, 2, 1)
_MAX_ELEMENTS = 1 << 21
_MAX_PRODUCTS = 1 << 30
_SCALED_BATCH = 3
_ROUNDING = 4
"""How many times too large a scaled case may still be, where its sizes must be multiples."""


def tile_sizes(source: KernelSource) -> tuple[int, ...]:
    """Sizes at which a tiled kernel changes path: around each tile, and a whole pipeline."""
    tiles = {v for name, v in source.tunables.items() if "TILE" in name or "BLOCK" in name}
    stages = max((v for name, v in source.tunables.items() if "STAGES" in name), default=1)
    found = set[int]()
    for tile in tiles:
        found |= {tile - 1, tile, tile + 1, 2 * tile, 2 * tile + 8, 3 * tile, tile * stages + 8}
    return tuple(sorted(size for size in found if size > 0))


def tile_of(source: KernelSource) -> tuple[int, int, int]:
    """Extent of the kernel's tile in m, n and k, by its tunables; a usual one without any."""
    values = source.tunables
    m, n, k = (
        values.get(f"TILE_{name}", values.get(f"BLOCK_{name}", usual))
        for name, usual in (("M", 32), ("N", 32), ("K", 16))
    )
    return m, n, k


def repair(
    case: Case, source: KernelSource, gpu: Gpu, *, most_products: int | None = None
) -> Case | None:
    """The nearest case that the contract admits: padding aligned first, then sizes rounded up.

    Where no such case is admitted, m is cut to a few, or n is.

    Args:
        case: What is wanted.
        source: The kernel.
        gpu: What it is compiled for.
        most_products: A case of more multiplications is scaled down; where sizes must be multiples
            it may still have four times as many.

    Returns:
        None where none of the attempts is admitted, or the case would be too large to be cheap.
    """
    limit = 2 * _MAX_PRODUCTS if most_products is None else _ROUNDING * most_products
    for wanted in (case, *_cut(case)):
        for multiple in _MULTIPLES:
            rounded = dataclasses.replace(
                wanted, **{name: -(-getattr(wanted, name) // multiple) * multiple for name in "mnk"}
            )
            if most_products is not None:
                rounded = _scaled(rounded, most_products, step=max(16, multiple))
            for candidate in (rounded, _aligned(rounded, source.layout), _dense(rounded)):
                problem = candidate.problem(source.layout)
                if _cheap(candidate, limit) and source.accepts(problem, gpu):
                    return candidate
    return None


def _cut(case: Case) -> Iterator[Case]:
    """The case with few rows, or few columns: what a kernel for little more than vectors takes."""
    for few in _FEW:
        if case.m > few:
            yield dataclasses.replace(case, m=few)
        if case.n > few:
            yield dataclasses.replace(case, n=few)


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


def _scaled(case: Case, most_products: int, *, step: int) -> Case:
    """The largest size halved until the case is small enough, its remainder by `step` kept.

    So a size just past a tile stays one.
    """
    if case.products > most_products:
        case = dataclasses.replace(case, batch=min(case.batch, _SCALED_BATCH))
    while case.products > most_products:
        name = max("mnk", key=lambda name: getattr(case, name))
        size = getattr(case, name)
        if size >= 2 * step:
            case = dataclasses.replace(case, **{name: size - size // (2 * step) * step})
        elif case.batch > 1 and case.products > _ROUNDING * most_products:
            case = dataclasses.replace(case, batch=case.batch - 1)
        else:
            break
    return case


def _cheap(case: Case, most_products: int) -> bool:
    largest = max(case.m * case.k, case.k * case.n, case.m * case.n)
    return largest * case.batch <= 4 * _MAX_ELEMENTS and case.products <= most_products
