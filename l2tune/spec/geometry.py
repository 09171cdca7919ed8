"""A contract's launches and tensor maps for one problem, as numbers.

What the runtime launches with, what the gate checks against the GPU's limits and what an exported
file writes down are these same values.
"""

import dataclasses

from l2tune.spec.expr import Expression
from l2tune.spec.gpu import Gpu
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import Problem

Triple = tuple[int, int, int]

_MAX_GRID = (2**31 - 1, 65535, 65535)
"""CUDA C++ Programming Guide, table of compute capabilities."""


@dataclasses.dataclass(frozen=True)
class LaunchGeometry:
    """One launch that the problem needs.

    Attributes:
        index: Position in the contract.
        kernel: Entry in the cubin.
        grid: Blocks.
        block: Threads.
        cluster: Blocks of a cluster.
        smem_bytes: Dynamic shared memory.
        pdl: Programmatic dependent launch.
        args: As the contract names them.
        extra_pointers: Null pointers that the compiler's own convention adds.
    """

    index: int
    kernel: str
    grid: Triple
    block: Triple
    cluster: Triple
    smem_bytes: int
    pdl: bool
    args: tuple[str, ...]
    extra_pointers: int


@dataclasses.dataclass(frozen=True)
class MapGeometry:
    """One tensor map; dimensions innermost first.

    Attributes:
        name: Of the contract's table.
        operand: `a`, `b` or `c`.
        sizes: Elements.
        strides_bytes: Of the outer two dimensions.
        box: Elements.
        swizzle: Bytes, 0 for none.
        l2_promotion: Bytes, 0 for none.
    """

    name: str
    operand: str
    sizes: Triple
    strides_bytes: tuple[int, int]
    box: Triple
    swizzle: int
    l2_promotion: int


def launches(compiled: Compiled, problem: Problem, gpu: Gpu) -> list[LaunchGeometry]:
    """Evaluate every launch; one with an empty grid is left out.

    Raises:
        ValueError: If a grid exceeds what CUDA takes, or is no multiple of its cluster.
    """
    source = compiled.source
    names = source.names(problem, gpu)
    found = []
    for index, (launch, data) in enumerate(
        zip(source.header.launch, compiled.launches, strict=True)
    ):
        grid, cluster = _triple(launch.grid, names), _triple(launch.cluster, names)
        if 0 in grid:
            continue
        for extent, limit, step in zip(grid, _MAX_GRID, cluster, strict=True):
            if not 0 < extent <= limit or step < 1 or extent % step:
                raise ValueError(f"{data.kernel}: grid {grid} is impossible with cluster {cluster}")
        found.append(
            LaunchGeometry(
                index=index,
                kernel=data.kernel,
                grid=grid,
                block=data.block or _triple(launch.block, names),
                cluster=cluster,
                smem_bytes=launch.smem(names) if data.smem_bytes is None else data.smem_bytes,
                pdl=source.is_dependent(launch),
                args=launch.args,
                extra_pointers=data.extra_pointers,
            )
        )
    return found


def tensor_maps(compiled: Compiled, problem: Problem, gpu: Gpu) -> dict[str, MapGeometry]:
    """Evaluate every tensor map of the contract, by name."""
    source = compiled.source
    names = source.names(problem, gpu)
    found = {}
    for name, table in source.header.tma.items():
        operand = table.operand or name
        rows, columns = stored_shape(operand, problem, transposed=bool(names.get(f"{operand}_t")))
        leading = names[f"ld{operand}"]
        matrices = problem.batch if names.get(f"{operand}_batched", 1) else 1
        stride = names[f"stride_{operand}"] if matrices > 1 else rows * leading
        inner, outer = (extent(names) for extent in table.box)
        found[name] = MapGeometry(
            name=name,
            operand=operand,
            sizes=(columns, rows, matrices),
            strides_bytes=(2 * leading, 2 * stride),
            box=(inner, outer, 1),
            swizzle=table.swizzle,
            l2_promotion=table.l2_promotion,
        )
    return found


def workspace_bytes(compiled: Compiled, problem: Problem, gpu: Gpu) -> int:
    """Scratch memory that the problem needs."""
    return compiled.source.header.workspace(compiled.source.names(problem, gpu))


def overlaps_predecessor(compiled: Compiled, problem: Problem, gpu: Gpu) -> bool:
    """Whether the first launch may start before what is ahead of it on the stream has ended.

    Not where scratch memory is cleared first: the clearing waits.
    """
    if compiled.source.header.workspace_zeroed and workspace_bytes(compiled, problem, gpu):
        return False
    first = next(iter(launches(compiled, problem, gpu)), None)
    return first is not None and first.pdl


def stored_shape(operand: str, problem: Problem, *, transposed: bool) -> tuple[int, int]:
    """Rows and columns of an operand as they lie in memory."""
    rows, columns = {
        "a": (problem.m, problem.k),
        "b": (problem.k, problem.n),
        "c": (problem.m, problem.n),
    }[operand]
    return (columns, rows) if transposed else (rows, columns)


def _triple(extents: tuple[Expression, Expression, Expression], names: dict[str, int]) -> Triple:
    x, y, z = (extent(names) for extent in extents)
    return (x, y, z)
