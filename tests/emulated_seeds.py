"""Seeds compiled and run on the emulator, for its tests and its benchmark."""

import dataclasses
from pathlib import Path

import numpy as np
import torch

from l2tune import compile, generate  # noqa: A004
from l2tune.runtime.emulator.launch import Emulated, emulate
from l2tune.spec.gpu import H200, Gpu
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import Problem, aligned_problem
from l2tune.store import Artifacts


@dataclasses.dataclass(frozen=True)
class Run:
    """What an emulated seed was given, and what came of it."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    emulated: Emulated


def compiled(
    seed: str, values: dict[str, int], cache: Path, *, layout: str = "nn", dtype: str = "float16",
    arch: str = "sm_90a",
) -> tuple[Compiled, dict[int, str]]:  # fmt: skip
    """A seed's instance and its PTX by launch."""
    artifacts = Artifacts(cache)
    text = instantiate(generate.seed_text(seed), values)
    flat = compile.flatten(text, generate.include_dir())
    source = KernelSource(text=flat, arch=arch, dtype=dtype, layout=layout)
    built = compile.compile_kernel(source, artifacts)
    assert isinstance(built, Compiled), built
    return built, {i: artifacts.get(digest).decode() for i, digest in enumerate(built.ptx)}


def run(
    built: tuple[Compiled, dict[int, str]], *, m: int, n: int, k: int, batch: int = 1,
    align: int = 2, seed: int = 0, gpu: Gpu = H200, sms: int = 1, warp_order: int | None = None,
) -> Run:  # fmt: skip
    """Emulate a product of small integers, so that float32 sums are exact in any order."""
    source = built[0].source
    problem = aligned_problem(m=m, n=n, k=k, batch=batch, layout=source.layout, align=align)
    gpu = gpu.model_copy(update={"sms": sms})
    assert source.accepts(problem, gpu)
    generator = np.random.default_rng(seed)
    dtype = torch.float16 if source.dtype == "float16" else torch.bfloat16
    operands, views = {}, {}
    for name, rows, columns, leading, stride in _shapes(problem, source.layout):
        size = stride * (batch - 1) + (rows - 1) * leading + columns
        flat = torch.from_numpy(generator.integers(-3, 4, size)).to(dtype)
        views[name] = flat.as_strided((batch, rows, columns), (stride, leading, 1))
        operands[name] = flat.view(torch.int16).numpy().view(np.uint16)
    emulated = emulate(*built, problem, gpu, operands, sms=sms, seed=warp_order)
    a = views["a"].mT if source.layout[0] == "t" else views["a"]
    b = views["b"].mT if source.layout[1] == "t" else views["b"]
    return Run(a, b, views["c"], emulated)


def _shapes(p: Problem, layout: str) -> list[tuple[str, int, int, int, int]]:
    a = (p.m, p.k) if layout[0] == "n" else (p.k, p.m)
    b = (p.k, p.n) if layout[1] == "n" else (p.n, p.k)
    return [
        ("a", *a, p.lda, p.stride_a),
        ("b", *b, p.ldb, p.stride_b),
        ("c", p.m, p.n, p.ldc, p.stride_c),
    ]


def is_right(result: Run) -> bool:
    """Whether every element is written and is the exact product, rounded once."""
    exact = result.a.double() @ result.b.double()
    right = torch.equal(exact.to(result.c.dtype), result.c)
    return right and not len(result.emulated.unwritten) and not result.emulated.stray_bytes
