"""A contract's launches and tensor maps for one key, as numbers.

The same values as `l2tune.runtime.executable` computes when it binds a kernel, which a test holds
equal; here they are written down instead of passed to a driver.
"""

import dataclasses

from l2tune.spec.expr import Expression
from l2tune.spec.header import TensorMap
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import Problem, alignment_bytes

Triple = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class LaunchGeometry:
    """One launch that the key needs.

    Attributes:
        kernel: Entry.
        grid: Blocks.
        block: Threads.
        cluster: Blocks of a cluster.
        smem_bytes: Dynamic shared memory.
        pdl: Programmatic dependent launch.
        args: As the contract names them.
    """

    kernel: str
    grid: Triple
    block: Triple
    cluster: Triple
    smem_bytes: int
    pdl: bool
    args: tuple[str, ...]


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


def launches(compiled: Compiled, key: GemmKey) -> list[LaunchGeometry]:
    """Evaluate every launch; one with an empty grid is left out, as it is when running."""
    source = compiled.source
    names = source.names(key.problem(), key.gpu)
    found = []
    for launch, data in zip(source.header.launch, compiled.launches, strict=True):
        grid = _triple(launch.grid, names)
        if 0 in grid:
            continue
        threads = data.block or _triple(launch.block, names)
        smem = launch.smem(names) if data.smem_bytes is None else data.smem_bytes
        cluster = _triple(launch.cluster, names)
        found.append(
            LaunchGeometry(data.kernel, grid, threads, cluster, smem, launch.pdl, launch.args)
        )
    return found


def tensor_maps(compiled: Compiled, key: GemmKey) -> list[MapGeometry]:
    """Evaluate every tensor map of the contract, in its order."""
    source, problem = compiled.source, key.problem()
    names = source.names(problem, key.gpu)
    return [_map(name, table, problem, names) for name, table in source.header.tma.items()]


def _map(name: str, table: TensorMap, problem: Problem, names: dict[str, int]) -> MapGeometry:
    operand = table.operand or name
    rows, columns = stored_shape(operand, problem, transposed=bool(names.get(f"{operand}_t")))
    leading = names[f"ld{operand}"]
    matrices = problem.batch if names.get(f"{operand}_batched", 1) else 1
    stride = names[f"stride_{operand}"] if matrices > 1 else rows * leading
    inner, outer = (extent(names) for extent in table.box)
    return MapGeometry(
        name, operand, (columns, rows, matrices), (2 * leading, 2 * stride), (inner, outer, 1),
        table.swizzle, table.l2_promotion,
    )  # fmt: skip


def stored_shape(operand: str, problem: Problem, *, transposed: bool) -> tuple[int, int]:
    """Rows and columns of an operand as they lie in memory."""
    rows, columns = {
        "a": (problem.m, problem.k),
        "b": (problem.k, problem.n),
        "c": (problem.m, problem.n),
    }[operand]
    return (columns, rows) if transposed else (rows, columns)


def operand_elements(operand: str, problem: Problem, *, transposed: bool) -> int:
    """Elements that an operand spans, padding included."""
    rows, _ = stored_shape(operand, problem, transposed=transposed)
    stride = int(getattr(problem, f"stride_{operand}"))
    matrices = problem.batch if stride else 1
    return (matrices - 1) * stride + rows * int(getattr(problem, f"ld{operand}"))


def offset_elements(problem: Problem) -> int:
    """How far a and b start past an aligned address, so that they are in the key's alignment class.

    Not at all where leading dimensions and strides already put them there.
    """
    steps = (problem.lda, problem.ldb, problem.ldc, problem.stride_a, problem.stride_b)
    natural = alignment_bytes(*(2 * step for step in (*steps, problem.stride_c)))
    return problem.align // 2 if problem.align < natural else 0


def overlaps_predecessor(compiled: Compiled, key: GemmKey) -> bool:
    """Whether the first launch may start before what is ahead of it on the stream has ended."""
    source = compiled.source
    if source.header.workspace_zeroed and workspace_bytes(compiled, key):
        return False  # clearing the workspace waits
    first = next(iter(launches(compiled, key)), None)
    return first is not None and first.pdl


def workspace_bytes(compiled: Compiled, key: GemmKey) -> int:
    """Scratch memory that the key needs."""
    source = compiled.source
    return source.header.workspace(source.names(key.problem(), key.gpu))


def _triple(extents: tuple[Expression, Expression, Expression], names: dict[str, int]) -> Triple:
    x, y, z = (extent(names) for extent in extents)
    return (x, y, z)
