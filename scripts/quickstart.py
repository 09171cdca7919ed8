"""Parts of scripts/quickstart that are no commands: compile all seeds, serve what was tuned."""

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import l2tune
from l2tune import compile, generate, settings, stages, verify  # noqa: A004
from l2tune.runtime.device import detect
from l2tune.runtime.reference import error_ratio
from l2tune.spec.gpu import A100, H200
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Compiled, CompileFailed, Refuted
from l2tune.store import Artifacts, Registry

console = Console()
if not console.is_terminal:
    console = Console(width=130)  # a log may be as wide as the table

COVERING = [
    # m, n, k, batch, layout, dtype: each layout, both dtypes, each kind of problem
    (4096, 4096, 4096, 1, "nn", "float16"),  # large
    (64, 64, 8192, 1, "nt", "bfloat16"),  # small result, long sum: split over k
    (1000, 1000, 1000, 1, "tn", "bfloat16"),  # no multiple of any tile
    (512, 512, 512, 16, "tt", "float16"),  # batched
]
INSTANCES = 2  # of each tiled seed, target and problem: the two best guesses
TUNED = [(64, 64, 8192), (1000, 1000, 1000), (4096, 4096, 4096)]

WITHOUT_A_GPU = """
[bold]No GPU was found, so nothing was run on one, and nothing was timed.[/bold]
Done here: every seed kernel was screened, held against its contract, compiled for both targets and
checked for its resources; kernels for one small product were run on the emulator and ranked by a
cost model, and the best was proven there with Hypothesis, stored as an estimate, shown and
exported; two planted cheats were refuted, each with a counterexample; [bold]l2tune.matmul[/bold] on
CPU tensors was shown to be torch.matmul. It runs no kernel because of an estimate.
Not done, because each needs an NVIDIA GPU (compute capability 8.x or 9.0, a driver for CUDA 13):
  - the gate at full sizes, on the hardware itself (docs/gate.md)
  - timing a kernel beside torch.matmul and the vendor's libraries (docs/measuring.md)
  - filling the cache with what l2tune.matmul may run
The same command on a machine with a GPU does all three.
"""


def covering_set() -> Iterator[tuple[GemmKey, KernelSource]]:
    """Each seed's best guesses for each problem of the set, on an A100 and on an H200."""
    for gpu in (A100, H200):
        for m, n, k, batch, layout, dtype in COVERING:
            key = GemmKey.dense(m, n, k, gpu=gpu, batch=batch, layout=layout, dtype=dtype)
            for source in generate.candidates(key, per_family=INSTANCES):
                yield key, stages.source_for(source.text, key)


def build(
    key: GemmKey, source: KernelSource, artifacts: Artifacts
) -> tuple[Compiled | Refuted | CompileFailed, float]:
    """All of the gate that needs no GPU, and the seconds of the compilation."""
    if (refuted := verify.screen(source) or verify.check_contract(source, key)) is not None:
        return refuted, 0.0
    started = time.monotonic()
    built = compile.compile_kernel(source, artifacts)
    seconds = time.monotonic() - started
    if isinstance(built, Compiled):
        return verify.check_resources(built, key) or built, seconds
    return built, seconds


def row(
    key: GemmKey, source: KernelSource, built: Compiled, seconds: float, artifacts: Artifacts
) -> list[str]:
    """One line of the table; of several launches, the largest figure."""
    names = source.names(key.problem(), key.gpu)
    used = [built.resources[data.kernel] for data in built.launches]
    smem = [
        r.smem_static_bytes + (launch.smem(names) if data.smem_bytes is None else data.smem_bytes)
        for r, launch, data in zip(used, source.header.launch, built.launches, strict=True)
    ]
    size = sum(len(artifacts.get(digest) or b"") for digest in built.cubins)
    values = " ".join(str(value) for value in source.tunables.values())
    return [
        f"{source.header.id} {values}", source.arch, key.label,
        str(max(r.registers for r in used)), f"{max(smem) / 1024:.1f}",
        str(sum(r.spill_bytes for r in used)), f"{size / 1024:.1f}", f"{seconds:.2f}",
    ]  # fmt: skip


def compile_all() -> int:
    """Compile the covering set, show it, and say what was not done."""
    table = Table(title="Seed kernels, compiled without a GPU", box=None, title_justify="left")
    for name in ("kernel, tunables as its \\[tune] lists them", "target", "problem"):
        table.add_column(name)
    for name in ("registers", "shared KB", "spills B", "cubin KB", "seconds"):
        table.add_column(name, justify="right")
    wanted, refused = list(covering_set()), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        artifacts = Artifacts(Path(folder))
        results = pool.map(lambda pair: build(*pair, artifacts), wanted)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("compiling", total=len(wanted))
            for (key, source), (built, seconds) in zip(wanted, results, strict=True):
                progress.advance(task)
                if isinstance(built, Compiled):
                    table.add_row(*row(key, source, built, seconds, artifacts))
                else:
                    refused += 1
                    console.print(f"[red]{source.name} {source.arch}[/red]: {built}")
    console.print(table)
    console.print(f"{len(wanted) - refused} of {len(wanted)} compiled and passed the checks.")
    return refused


def without_gpu() -> int:
    """What closes the story without a GPU; how much of it failed."""
    failed = not equals_torch_on_cpu()
    console.print(WITHOUT_A_GPU, soft_wrap=True)
    return int(failed)


def equals_torch_on_cpu() -> bool:
    """Whether `l2tune.matmul` of CPU tensors is `torch.matmul`, bit for bit."""
    generator = torch.Generator().manual_seed(0)
    for a_shape, b_shape in (((5, 7), (7, 9)), ((2, 5, 7), (7, 9)), ((3, 2, 0), (3, 0, 3))):
        a = torch.randn(a_shape, generator=generator).half()
        b = torch.randn(b_shape, generator=generator).half()
        if not torch.equal(l2tune.matmul(a, b), torch.matmul(a, b)):
            console.print(f"[red]l2tune.matmul differs from torch.matmul: {a_shape} @ {b_shape}")
            return False
    return True


def serve() -> int:
    """Multiply through the cache, judge by a float64 reference, show what was tuned."""
    gpu = detect()
    assert gpu is not None  # scripts/quickstart looked
    registry = Registry(settings.current().cache_dir)
    table = Table(title=f"Served from the cache by a fresh process, {gpu.name}")
    for name in ("shape", "kernel", "us", "torch us", "speed-up", "eager", "in graphs"):
        table.add_column(name)
    table.add_column("error / bound")
    worst = 0.0
    for m, n, k in TUNED:
        key = GemmKey.dense(m, n, k, gpu=gpu)
        a = torch.randn(m, k, dtype=torch.float16, device="cuda")
        b = torch.randn(k, n, dtype=torch.float16, device="cuda")
        ratio = error_ratio(a, b, l2tune.matmul(a, b)).item()
        worst = max(worst, ratio)
        record = registry.get(key)
        if record is None:
            table.add_row(key.label, "none in the cache: torch.matmul", *[""] * 5, f"{ratio:.3f}")
            continue
        timing, admitted = record.outcome.timing, isinstance(record.outcome, Admitted)
        table.add_row(
            key.label, timing.verified.compiled.source.name, f"{timing.gpu.us:.2f}",
            f"{timing.baselines['torch'].us:.2f}", f"{timing.speedup:.2f}",
            record.outcome.eager if admitted else "torch",
            record.outcome.graph if admitted else "torch", f"{ratio:.3f}",
        )  # fmt: skip
    console.print(table)
    console.print("error / bound: at most 1 for a product summed in float32, in any order.")
    return int(worst > 1.0)


PARTS = {"compile": compile_all, "without-gpu": without_gpu, "serve": serve}

if __name__ == "__main__":
    sys.exit(min(PARTS[sys.argv[1]](), 1))
