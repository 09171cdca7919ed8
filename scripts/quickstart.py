"""What scripts/quickstart shows: compiling and emulating, or serving what was tuned."""

import os
import queue
import subprocess
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
from l2tune import compile, generate, pipeline, settings, verify  # noqa: A004
from l2tune.runtime.device import detect
from l2tune.runtime.reference import error_ratio
from l2tune.runtime.worker import NO_GPU, Worker
from l2tune.spec.gpu import A100, H200
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, CheckPassed, Compiled, CompileFailed, Refuted
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
EMULATED = (96, 80, 192)  # one instance of each seed, on this and on its edge cases
PLANTED = [("shared_race", (64, 64, 64)), ("write_past_end", (33, 65, 32))]
TUNED = [(64, 64, 8192), (1000, 1000, 1000), (4096, 4096, 4096)]

WITHOUT_A_GPU = """
[bold]No GPU was found, so nothing was run on one.[/bold]
Done here: every seed kernel was screened, held against its contract, compiled for both targets and
checked for its resources; an instance of each ran on the emulator, on small problems that reach its
edges; two planted faults were refuted there; [bold]l2tune.matmul[/bold] on CPU tensors was shown to
be torch.matmul. On a file of yours: `l2tune emulate FILE --shape M N K`, `l2tune verify FILE`.
Not done, because each needs an NVIDIA GPU (compute capability 8.x or 9.0, a driver for CUDA 13):
  - the rest of the gate: many more cases, at full sizes, on the hardware itself (docs/gate.md)
  - timing a kernel beside torch.matmul and the vendor's libraries (docs/measuring.md)
  - filling the cache: `l2tune tune --shape M N K`
The same command on a machine with a GPU does all three.
"""


def covering_set() -> Iterator[tuple[GemmKey, KernelSource]]:
    """Each seed's best guesses for each problem of the set, on an A100 and on an H200."""
    for gpu in (A100, H200):
        for m, n, k, batch, layout, dtype in COVERING:
            key = GemmKey.dense(m, n, k, gpu=gpu, batch=batch, layout=layout, dtype=dtype)
            for source in generate.candidates(key, per_family=INSTANCES):
                yield key, pipeline.source_for(source.text, key)


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


def emulate_seeds() -> int:
    """Run the best guess of each seed for one small problem on the emulator, two at a time."""
    key = GemmKey.dense(*EMULATED, gpu=H200)
    sources = [pipeline.source_for(s.text, key) for s in generate.candidates(key, per_family=1)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    workers = [Worker(device=NO_GPU, spares=0) for _ in range(min(2, os.cpu_count() or 1))]
    for worker in workers:
        idle.put(worker)

    def emulate(source: KernelSource, folder: Path) -> CheckPassed | Refuted | CompileFailed:
        built = compile.compile_kernel(source, Artifacts(folder))
        if isinstance(built, CompileFailed):
            return built
        worker = idle.get()
        try:
            return verify.emulate(worker, built, key, cache_dir=folder, seed=0)
        finally:
            idle.put(worker)

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(len(workers)) as pool:
        found = list(pool.map(lambda source: emulate(source, Path(name)), sources))
    for worker in workers:
        worker.close()
    return show_emulated(sources, found)


def show_emulated(
    sources: list[KernelSource], found: list[CheckPassed | Refuted | CompileFailed]
) -> int:
    """Print what the emulator said of each seed; how many did not pass."""
    table = Table(title="Run on the emulator, for sm_90a", box=None, title_justify="left")
    table.add_column("kernel")
    table.add_column("runs", justify="right")
    table.add_column("error / bound", justify="right")
    failed = 0
    for source, result in zip(sources, found, strict=True):
        if isinstance(result, CheckPassed) and result.examples:
            table.add_row(source.header.id, str(result.examples), f"{result.worst_ratio:.3f}")
        else:
            failed += 1
            console.print(f"[red]{source.name}[/red]: {result}")
    console.print(table)
    return failed


def refute_planted() -> int:
    """Show what the emulator says of two faulty kernels; how many of them it lets pass."""
    passed = 0
    for name, shape in PLANTED:
        command = ["emulate", f"tests/exploits/{name}.cu", "--shape", *map(str, shape)]
        console.print(f"\n[bold]l2tune {' '.join(command)}[/bold]   (a fault was planted here)")
        done = subprocess.run(
            [sys.executable, "-m", "l2tune.cli", *command], capture_output=True, text=True,
            cwd=Path(__file__).resolve().parents[1],
        )  # fmt: skip
        console.print(done.stdout + done.stderr, markup=False, highlight=False, soft_wrap=True)
        passed += done.returncode != 1
    return passed


def without_gpu() -> int:
    """All that can be shown without a GPU; how much of it failed."""
    failed = compile_all() + emulate_seeds() + refute_planted() + (not equals_torch_on_cpu())
    console.print(WITHOUT_A_GPU, soft_wrap=True)
    return int(failed > 0)


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


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1:] == ["serve"] else without_gpu())
