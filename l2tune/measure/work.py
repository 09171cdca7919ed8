"""What a kernel executes for a small piece of a product, counted on the emulator.

A piece is one tile of the result, or a cluster's, with all of k. It is run at two depths, so that
the counts for any k follow by a straight line. Nothing here is a time.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from l2tune.runtime.emulator.findings import EmulationStopped
from l2tune.runtime.emulator.processor import EmulatedProcessor
from l2tune.runtime.emulator.program import UnsupportedInstructionError
from l2tune.runtime.emulator.statistics import Statistics
from l2tune.runtime.emulator.tokens import PtxSyntaxError
from l2tune.runtime.worker import Worker, WorkerDied
from l2tune.spec import geometry
from l2tune.spec.expr import cdiv
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import Problem, aligned_problem
from l2tune.store.artifacts import Artifacts

_TIMEOUT_S = 60.0
_STEPS = (1, 2)
"""Depths that are run, in steps of the main loop."""
_STEP = 128
"""Of a kernel that does not name its own; a multiple of all that are in use."""
_SIZES = (2, 4, *range(8, 64, 8), 64, 80, 96, 112, 128, 160, 192, 224, 256, 384, 512)
_SCALES = (1, 2, 4, 8)
"""Of a piece whose sizes the contract does not admit."""
ANY_SMS = 1 << 20
"""More multiprocessors than there is work: a persistent kernel's grid is then its tiles."""
_NOT_ISSUED = ("mov.", "cvta.", "ld.param.", "ret")
"""PTX that is gone, or free, in machine code."""
_TENSOR = re.compile(r"(mma\.sync|wmma\.mma|wgmma\.mma_async)\..*\.m(\d+)n(\d+)k(\d+)")
_ARITHMETIC = re.compile(r"(add|sub|mul|fma)\..*(f32|f16|f16x2|bf16|bf16x2)")
_COPY_IN = re.compile(r"cp\.async\..*shared(::\w+)?\.global")
_COPY_OUT = re.compile(r"cp\.(reduce\.)?async\.bulk\..*global\.shared")
_WARPS_OF_GROUP = 4
_LINE_BYTES, _SECTOR_BYTES = 128, 32


@dataclasses.dataclass(frozen=True)
class Work:
    """What the warps of one launch do together.

    Attributes:
        issued: Instructions.
        arithmetic: Those of them that are float arithmetic.
        mma_flops: Operations by `mma.sync`.
        wgmma_flops: Operations by `wgmma`.
        shared_bytes: Through the L1 cache and shared memory, bank conflicts included.
        l2_bytes: From and to the L2: whole sectors, as if the L1 cache never hit; asynchronous
            copies are taken to bring each operand of a piece once.
    """

    issued: float = 0.0
    arithmetic: float = 0.0
    mma_flops: float = 0.0
    wgmma_flops: float = 0.0
    shared_bytes: float = 0.0
    l2_bytes: float = 0.0

    def times(self, factor: float) -> "Work":
        """The same, `factor` times."""
        return Work(*(factor * value for value in dataclasses.astuple(self)))

    def towards(self, other: "Work", share: float) -> "Work":
        """On the straight line from this through `other`, at `share` of the way; never negative."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Work(*(max(0.0, mine + share * (theirs - mine)) for mine, theirs in pairs))


def count(
    worker: Worker, compiled: Compiled, key: GemmKey, *, cache_dir: Path
) -> dict[int, Work] | None:
    """Count what a kernel does for `key`, from emulated pieces of it.

    Args:
        worker: Made with `device=NO_GPU`.
        compiled: The kernel.
        key: The product.
        cache_dir: Where its PTX is.

    Returns:
        The whole product's work, by the position of the launch in the contract; None where the
        emulator refuses the kernel, does not know it, or is not done in a minute.

    Raises:
        InfrastructureError: If the machine failed.
    """
    try:
        found: dict[int, Work] | None = worker.call(
            count_here, (compiled, key, cache_dir), timeout_s=_TIMEOUT_S
        )
    except WorkerDied:
        return None
    return found


def count_here(request: tuple[Compiled, GemmKey, Path]) -> dict[int, Work] | None:
    """Count in this process; what `count` sends to the worker."""
    compiled, key, cache_dir = request
    pieces = _pieces(compiled, key)
    if pieces is None:
        return None
    processor = EmulatedProcessor(compiled, Artifacts(cache_dir))
    try:
        counted = [_run(processor, piece, key) for piece in pieces]
    except (EmulationStopped, UnsupportedInstructionError, PtxSyntaxError):
        return None
    shallow, deep = counted[0], counted[-1]
    share = 0.0
    if len(pieces) > 1:
        step = pieces[0].k
        share = (cdiv(key.k, step) * step - step) / (pieces[1].k - step)
    number = cdiv(key.m, pieces[0].m) * cdiv(key.n, pieces[0].n) * key.batch
    found = {
        index: work.towards(deep.get(index, work), share).times(number)
        for index, work in shallow.items()
    }
    flops = sum(work.mma_flops + work.wgmma_flops for work in found.values())
    return None if 0 < flops < key.flops else found


def _pieces(compiled: Compiled, key: GemmKey) -> list[Problem] | None:
    """One piece, no larger than the key, at one or two depths; None if the contract admits none."""
    values = compiled.source.tunables
    step = values.get("TILE_K", values.get("BLOCK_K", _STEP)) * values.get("SPLIT", 1)
    m, n = _tile(compiled, key)
    for scale in _SCALES:
        depths = [scale * steps * step for steps in _STEPS]
        if key.k <= depths[-1]:
            depths = [key.k]
        found = [
            aligned_problem(
                m=min(scale * m, key.m), n=min(scale * n, key.n), k=k, batch=1, layout=key.layout,
                align=key.align,
            )
            for k in depths
        ]  # fmt: skip
        if all(compiled.source.accepts(piece, key.gpu) for piece in found):
            return found
    return None


def _tile(compiled: Compiled, key: GemmKey) -> tuple[int, int]:
    """Rows and columns that need no more blocks than one element does: what the grid says."""
    fewest = _blocks(compiled, key, 1, 1)
    sizes = {"m": 1, "n": 1}
    open_sides = {"m", "n"}
    while open_sides:
        side = min(open_sides, key=lambda name: (sizes[name], name))  # as square as it can be
        larger = next((size for size in _SIZES if size > sizes[side]), None)
        if larger and _blocks(compiled, key, **{**sizes, side: larger}) == fewest:
            sizes[side] = larger
        else:
            open_sides.remove(side)
    return sizes["m"], sizes["n"]


def _blocks(compiled: Compiled, key: GemmKey, m: int, n: int) -> int:
    """Blocks of the first launch, on a GPU that has as many multiprocessors as are of use."""
    problem = aligned_problem(m=m, n=n, k=key.k, batch=1, layout=key.layout, align=key.align)
    unlimited = key.gpu.model_copy(update={"sms": ANY_SMS})
    x, y, z = geometry.launches(compiled, problem, unlimited)[0].grid
    return x * y * z


def _run(processor: EmulatedProcessor, problem: Problem, key: GemmKey) -> dict[int, Work]:
    """Emulate one piece with small whole numbers for operands."""
    compiled = processor.compiled
    dtype: torch.dtype = getattr(torch, compiled.source.dtype)
    generator = torch.Generator().manual_seed(0)
    a, b, c = (
        torch.randint(-3, 4, (elements,), generator=generator).to(dtype)
        for elements in _padded(problem, compiled)
    )
    bound = processor.bind(problem, key.gpu)
    bound(a.data_ptr(), b.data_ptr(), c.data_ptr(), 0, 0)
    assert processor.last is not None
    launches = geometry.launches(compiled, problem, key.gpu)
    return {
        launch.index: _work(ran, problem)
        for launch, ran in zip(launches, processor.last.statistics, strict=True)
    }


def _padded(problem: Problem, compiled: Compiled) -> Iterator[int]:
    """Elements of a, b and c, rows padded."""
    picks = compiled.source.picks
    for operand in "abc":
        rows, _ = geometry.stored_shape(
            operand, problem, transposed=bool(picks.get(f"{operand}_t"))
        )
        yield rows * int(getattr(problem, f"ld{operand}"))


def _work(ran: Statistics, problem: Problem) -> Work:
    """What one launch of a piece executed."""
    issued = arithmetic = 0
    mma_flops = wgmma_flops = wgmma_bytes = 0.0
    for name, times in ran.mix.items():
        if name.startswith(_NOT_ISSUED):
            continue
        issued += times
        arithmetic += times if _ARITHMETIC.match(name) else 0
        if found := _TENSOR.match(name):
            m, n, k = map(int, found.groups()[1:])
            if found[1].startswith("wgmma"):
                wgmma_flops += times * 2 * m * n * k / _WARPS_OF_GROUP
                wgmma_bytes += times * 2 * (m + n) * k / _WARPS_OF_GROUP
            else:
                mma_flops += times * 2 * m * n * k
    shared_bytes = wgmma_bytes
    l2_bytes = 0.0
    for one in ran.accesses.values():
        # An average of the executions that were measured; for copies that fill with zeros past the
        # end of k it is too small a sample, and what they bring is known.
        passes = one.executed * one.taken / one.measured
        if one.space == "shared":
            shared_bytes += passes * _LINE_BYTES
        elif not _COPY_IN.match(one.text):
            l2_bytes += passes * _SECTOR_BYTES
    if any(map(_COPY_IN.match, ran.mix)):
        l2_bytes += 2 * (problem.m + problem.n) * problem.k
    if any(map(_COPY_OUT.match, ran.mix)):
        l2_bytes += 2 * problem.m * problem.n
    return Work(issued, arithmetic, mma_flops, wgmma_flops, shared_bytes + l2_bytes, l2_bytes)
