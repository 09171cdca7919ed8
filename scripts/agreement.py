"""The emulator's side of its comparison with the H200, and the table of what came of it.

    python scripts/agreement.py emulate [--resume]   writes docs/results/nvidia-h200/agreement_emulated.csv
    python scripts/agreement.py table [--check]      puts agreement.csv's summary into docs/emulator.md

`emulate` runs the covering set of `covering_set.py` and keeps hashes of operands and results; that
file is committed before `scripts/gpu/agreement` runs the same rows on the GPU. The table replaces
what stands between `<!-- agreement:begin -->` and `<!-- agreement:end -->`.
"""  # noqa: E501

import argparse
import csv
import functools
import hashlib
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from covering_set import VALUES, Entry, covering_set
from marked import put

from l2tune import compile, settings  # noqa: A004
from l2tune.runtime.emulator.processor import EmulatedProcessor
from l2tune.runtime.processor import Processor
from l2tune.spec.gpu import H200
from l2tune.spec.outcome import Compiled
from l2tune.store import Artifacts
from l2tune.verify import arena
from l2tune.verify.arena import Arena
from l2tune.verify.trial import Bench

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/results/nvidia-h200"
EMULATED, COMPARED = FOLDER / "agreement_emulated.csv", FOLDER / "agreement.csv"
DEFINED_ORDER = ("sm80/naive", "sm80/tiled")
"""Families that add one product after the other: the PTX decides every bit of the result."""
_NAN = 0x7FFF  # in either type
Row = dict[str, str]


@functools.cache
def artifacts() -> Artifacts:
    """The cache's cubins and PTX."""
    return Artifacts(settings.current().cache_dir)


def build(entry: Entry) -> Compiled:
    """Compile the row's kernel, or find it compiled."""
    source = entry.source()
    assert source.header.deterministic, source.name
    compiled = compile.compile_kernel(source, artifacts())
    if not isinstance(compiled, Compiled):
        raise RuntimeError(f"{source.name} does not compile: {compiled.log}")
    return compiled


def make_operands(entry: Entry) -> Arena:
    """The row's operands on the CPU, the same bits on every machine.

    They are drawn in float64: where two machines' math libraries differ in the last bit, rounding
    to 16 bits hides it. NaN gets one pattern, since conversions make different ones.
    """
    torch.set_default_dtype(torch.float64)
    try:
        dtype = getattr(torch, entry.dtype)
        operands = arena.build(entry.case, entry.layout, dtype=dtype, device="cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    for view in (operands.a.view, operands.b.view):
        view.view(torch.int16).masked_fill_(view.isnan(), _NAN)
    return operands


def make_bench(entry: Entry, processor: Processor) -> Bench:
    """The row's kernel on a processor, the contract told of the row's multiprocessors."""
    gpu = H200.model_copy(update={"sms": entry.sms})
    return Bench(processor, gpu, settings.current().launch_timeout_s)


def launch(bench: Bench, operands: Arena, entry: Entry) -> torch.Tensor:
    """Run the kernel once; the result on the CPU, ``[batch, m, n]``."""
    bound = bench.bind(entry.case)
    bench.launch(bound, operands, bench.workspace(bound, entry.case), entry.case)
    result, intact = operands.take_result()
    if not intact:
        raise RuntimeError(f"{bench.source.name} wrote outside its result")
    return result.cpu()


def digest(*tensors: torch.Tensor) -> str:
    """The first 16 digits of the SHA-256 over the tensors' bits, row by row."""
    bits = [x.contiguous().view(torch.int16).numpy().tobytes() for x in tensors]
    return hashlib.sha256(b"".join(bits)).hexdigest()[:16]


def identity(compiled: Compiled) -> Row:
    """What was compiled, and into what."""
    ptx = hashlib.sha256(" ".join(compiled.ptx).encode()).hexdigest()
    return {
        "source": compiled.source.digest[:16], "compiler": compiled.compiler, "ptx": ptx[:16],
    }  # fmt: skip


def emulate(entry: Entry) -> tuple[Row, torch.Tensor]:
    """Run a row on the emulator; its columns, and the result."""
    compiled, operands = build(entry), make_operands(entry)
    bench = make_bench(entry, EmulatedProcessor(compiled, artifacts()))
    result = launch(bench, operands, entry)
    ratio = bench.ratio(operands, result, entry.case)
    found = {
        "operands": digest(operands.logical_a, operands.logical_b), "emulated": digest(result),
        "emulated_ratio": f"{ratio:.4f}",
    }  # fmt: skip
    return {**entry.as_row(), **identity(compiled), **found}, result


def compare(emulated: torch.Tensor, device: torch.Tensor) -> Row:
    """How two results of the same 16-bit type differ.

    Returns:
        `differing`: elements with other bits. `worst_ulp`: the largest number of steps between
        neighbouring values of the type from one to the other; `inf` where only one is NaN.
    """
    places = [_place(x) for x in (emulated, device)]
    apart = (places[0] - places[1]).abs()
    nan = [x.isnan() for x in (emulated, device)]
    worst = int(apart.where(~(nan[0] | nan[1]), 0).max())
    differing = (emulated.view(torch.int16) != device.view(torch.int16)).sum()
    one_nan = bool((nan[0] != nan[1]).any())
    return {"differing": str(int(differing)), "worst_ulp": "inf" if one_nan else str(worst)}


def _place(x: torch.Tensor) -> torch.Tensor:
    """Each value's place on the type's number line; both zeros are at 0."""
    bits = x.view(torch.int16).int()
    return torch.where(bits < 0, -32768 - bits, bits)


def read(path: Path) -> list[Row]:
    """A table's rows; none where there is no table yet."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a table whole."""
    rows = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def emulate_all(*, resume: bool, jobs: int) -> None:
    """Write `EMULATED`, row by row; with `resume` keep the rows that are there."""
    entries = covering_set()
    kept = [(Entry.of_row(row), row) for row in read(EMULATED)] if resume else []
    rows = {
        entries.index(entry): row
        for entry, row in kept
        if entry in entries and entry.source().digest[:16] == row["source"]
    }
    start = time.monotonic()
    with ProcessPoolExecutor(jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        left = [index for index in range(len(entries)) if index not in rows]
        running = {pool.submit(_emulated_row, entries[index]): index for index in left}
        for done in as_completed(running):
            index = running[done]
            rows[index] = done.result()
            write(EMULATED, [rows[known] for known in sorted(rows)])
            seconds = time.monotonic() - start
            print(f"[{len(rows)}/{len(entries)}] {seconds:.0f} s: {label(rows[index])}")


def _emulated_row(entry: Entry) -> Row:
    try:
        return emulate(entry)[0]
    except Exception as error:
        raise RuntimeError(f"{entry}: {error}") from error


def label(row: Row) -> str:
    """One row in a few words."""
    size = f"{row['m']}x{row['n']}x{row['k']} x{row['batch']}"
    return f"{row['family']} {row['dtype']} {row['layout']} {row['ragged']} {size} {row['values']}"


def table(rows: list[Row]) -> str:
    """Markdown: for each family and class of values how many rows agree in every bit."""
    if not rows:
        return "Not measured yet."
    titles = ["family", *VALUES, "all", "worst difference, ulp", "error / bound, emulator", "H200"]
    lines = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles)]
    for family in sorted({row["family"] for row in rows}):
        mine = [row for row in rows if row["family"] == family]
        cells = [_agreeing([row for row in mine if row["values"] == name]) for name in VALUES]
        ratios = [max(float(row[name] or 0) for row in mine)
                  for name in ("emulated_ratio", "device_ratio")]  # fmt: skip
        worst = max((float(row["worst_ulp"]) for row in mine if row["worst_ulp"]), default=0)
        cells += [_agreeing(mine), f"{worst:.0f}", *(f"{ratio:.2f}" for ratio in ratios)]
        lines.append(f"| `{family}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _agreeing(rows: list[Row]) -> str:
    return f"{sum(row['bits_equal'] == 'yes' for row in rows)} of {len(rows)}"


def write_table(*, check: bool) -> int:
    """Put the table into docs/emulator.md, or say whether it is there."""
    document = ROOT / "docs/emulator.md"
    stale = "out of date; run scripts/agreement.py table"
    return put(document, "agreement", table(read(COMPARED)), check=check, stale=stale)


def main() -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    emulating = commands.add_parser("emulate", help="run the covering set on the emulator")
    emulating.add_argument("--resume", action="store_true", help="keep the rows that are there")
    emulating.add_argument("--jobs", type=int, default=2, help="processes")
    tabling = commands.add_parser("table", help="put the summary into docs/emulator.md")
    tabling.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    options = parser.parse_args()
    if options.command == "table":
        return write_table(check=options.check)
    emulate_all(resume=options.resume, jobs=options.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
