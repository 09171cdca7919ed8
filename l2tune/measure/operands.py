"""The operands that are timed: many sets, so that every launch of a replay meets cold data.

A replay uses each set once and its outputs are poisoned before, so no launch finds its answer in
memory, or its operands in the L2. All contestants share the same buffers. N(0, 1) throughout,
padding included: zeros draw less power and run up to 15 % faster.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

import torch

from l2tune.spec.key import GemmKey, Layout
from l2tune.spec.problem import Problem, alignment_bytes
from l2tune.spec.roofline import floor_us

POISON = math.nan
MIN_SETS, MAX_SETS = 2, 256
MAX_TOTAL_BYTES = 8 << 30
_L2_MULTIPLE = 3
_LAUNCH_US = 2.0
_ANY_GPU_FLOPS_PER_US = 1e9
_SET_STEP_ELEMENTS = 128  # each set starts on a 256-byte boundary, as a fresh allocation would
_CHUNK_ELEMENTS = 1 << 26
_OTHER_B: dict[Layout, Layout] = {"nn": "nt", "nt": "nn", "tn": "tt", "tt": "tn"}


def set_count(set_bytes: int, launch_us: float, *, l2_bytes: int, replay_us: float = 1000.0) -> int:
    """Decide how many operand sets to build, which is also the launches of one replay.

    Args:
        set_bytes: Of a, b and c together.
        launch_us: A guess at what one launch takes.
        l2_bytes: Size of the GPU's L2.
        replay_us: How long a replay should last.

    Returns:
        Enough to last `replay_us` and to exceed the L2 threefold; between 2 and 256 sets, and 8 GB
        wherever that allows two.
    """
    wanted = max(_L2_MULTIPLE * l2_bytes / set_bytes, replay_us / launch_us)
    most = min(MAX_SETS, MAX_TOTAL_BYTES // set_bytes)
    return max(MIN_SETS, min(math.ceil(wanted), most))


@dataclasses.dataclass(frozen=True)
class OperandSets:
    """Views of the logical operands: `[m, k]`, `[k, n]`, `[m, n]`, with a batch dimension above 1.

    Attributes:
        key: What they are operands of.
        a: One view for each set.
        b: Likewise.
        c: Outputs, likewise.
        seed: What the inputs are drawn from.
    """

    key: GemmKey
    a: tuple[torch.Tensor, ...]
    b: tuple[torch.Tensor, ...]
    c: tuple[torch.Tensor, ...]
    _inputs: tuple[torch.Tensor, ...]
    _outputs: torch.Tensor
    seed: int

    @property
    def count(self) -> int:
        """Sets, and launches of one replay."""
        return len(self.a)

    def poison(self) -> None:
        """Overwrite every output with NaN."""
        self._outputs.fill_(POISON)

    def refill(self) -> None:
        """Write the inputs afresh from the seed."""
        for target, fresh in self._chunks():
            target.copy_(fresh)

    def unchanged(self) -> bool:
        """Whether the inputs still hold what the seed gives."""
        return all(torch.equal(target, fresh.to(target)) for target, fresh in self._chunks())

    def _chunks(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        device = self._outputs.device
        generator = torch.Generator(device).manual_seed(self.seed)
        for storage in self._inputs:
            flat = storage.view(-1)
            for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
                target = flat[start : start + _CHUNK_ELEMENTS]
                yield target, torch.randn(target.numel(), generator=generator, device=device)


@dataclasses.dataclass(frozen=True)
class _Form:
    """How one operand lies in memory: logical sizes and strides, and elements of storage."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    elements: int


def _form(problem: Problem, layout: str, operand: Literal["a", "b", "c"]) -> _Form:
    rows, columns, leading, stride, transposed = {
        "a": (problem.m, problem.k, problem.lda, problem.stride_a, layout[0] == "t"),
        "b": (problem.k, problem.n, problem.ldb, problem.stride_b, layout[1] == "t"),
        "c": (problem.m, problem.n, problem.ldc, problem.stride_c, False),
    }[operand]
    strides = (1, leading) if transposed else (leading, 1)
    stored_rows = columns if transposed else rows
    matrices = problem.batch if stride else 1
    batched = problem.batch > 1
    return _Form(
        sizes=(problem.batch, rows, columns) if batched else (rows, columns),
        strides=(stride, *strides) if batched else strides,
        elements=matrices * stored_rows * leading,
    )


def _carve(
    form: _Form, count: int, *, offset: int, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    step = -(-(form.elements + offset) // _SET_STEP_ELEMENTS) * _SET_STEP_ELEMENTS
    storage = torch.empty(count, step, dtype=dtype, device=device)
    views = tuple(
        storage.as_strided(form.sizes, form.strides, index * step + offset)
        for index in range(count)
    )
    return storage, views


def _offset_elements(problem: Problem) -> int:
    """How far a and b start past an aligned address.

    Not at all where leading dimensions and strides already make the key's alignment class, as they
    do for fresh dense operands.
    """
    strides = (problem.lda, problem.ldb, problem.ldc, problem.stride_a, problem.stride_b)
    natural = alignment_bytes(*(2 * stride for stride in (*strides, problem.stride_c)))
    return problem.align // 2 if problem.align < natural else 0


def set_bytes(key: GemmKey) -> int:
    """Bytes of one set's storage."""
    problem = key.problem()
    return 2 * sum(_form(problem, key.layout, operand).elements for operand in ("a", "b", "c"))


def build(key: GemmKey, *, count: int, seed: int, device: str = "cuda") -> OperandSets:
    """Make `count` sets as the key's problem says: layout, padded rows, shared batches, alignment.

    Args:
        key: What they are operands of.
        count: How many sets.
        seed: What their values are drawn from.
        device: Where.

    Returns:
        The sets, inputs drawn from N(0, 1) and outputs poisoned.
    """
    problem, dtype = key.problem(), getattr(torch, key.dtype)
    offset = _offset_elements(problem)
    (a_storage, a), (b_storage, b) = (
        _carve(
            _form(problem, key.layout, operand), count, offset=offset, dtype=dtype, device=device
        )
        for operand in ("a", "b")
    )
    outputs, c = _carve(
        _form(problem, key.layout, "c"), count, offset=0, dtype=dtype, device=device
    )
    sets = OperandSets(key, a, b, c, (a_storage, b_storage), outputs, seed)
    sets.refill()
    sets.poison()
    return sets


def sized(
    key: GemmKey, *, seed: int, replay_us: float = 1000.0, most: int = MAX_SETS
) -> OperandSets:
    """Build as many sets on the current device as `set_count` says.

    Args:
        key: What they are operands of.
        seed: What their values are drawn from.
        replay_us: How long a replay should last.
        most: Sets at most; where they do not exceed the L2, it has to be flushed before a replay.
    """
    # A GPU that the roofline does not know is taken to be as fast as any, which errs to more sets.
    fastest_us = _LAUNCH_US + key.flops / _ANY_GPU_FLOPS_PER_US
    count = set_count(
        set_bytes(key),
        max(floor_us(key), fastest_us),
        l2_bytes=torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size,
        replay_us=replay_us,
    )
    return build(key, count=min(count, most), seed=seed)


def other_b(sets: OperandSets) -> tuple[torch.Tensor, ...]:
    """Copy every b into the other storage order: the same values, for a library that prefers it."""
    key = sets.key.model_copy(update={"layout": _OTHER_B[sets.key.layout]})
    problem = key.problem()
    _, views = _carve(
        _form(problem, key.layout, "b"),
        sets.count,
        offset=_offset_elements(problem),
        dtype=sets.b[0].dtype,
        device=str(sets.b[0].device),
    )
    for view, b in zip(views, sets.b, strict=True):
        if view.dim() == 3 and view.stride(0) == 0:
            view[0].copy_(b[0])  # all batches share it
        else:
            view.copy_(b)
    return views
