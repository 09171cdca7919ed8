"""Run the covering set on an H200 and compare each result with the emulator's, bit by bit.

python scripts/gpu/agreement.py RESULT.csv

Takes the rows of docs/results/nvidia-h200/agreement_emulated.csv, whose hashes were committed
before. A row whose bits differ is emulated again here, to say by how much; after BUDGET_S seconds
(default 240) of that the rest is left without.
"""

import dataclasses
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import agreement  # noqa: E402  # scripts/agreement.py
from agreement import Row  # noqa: E402
from covering_set import Entry  # noqa: E402

from l2tune.runtime.device import detect  # noqa: E402
from l2tune.runtime.driver import KernelDied, LaunchRefusedError  # noqa: E402
from l2tune.runtime.executable import Executable  # noqa: E402
from l2tune.runtime.processor import CudaProcessor, Processor  # noqa: E402
from l2tune.spec.gpu import H200  # noqa: E402
from l2tune.spec.outcome import Compiled  # noqa: E402
from l2tune.verify.arena import Arena, Operand  # noqa: E402
from l2tune.verify.trial import KernelFailed  # noqa: E402

BLANK = {
    "same_ptx": "", "same_operands": "", "device": "", "device_ratio": "", "bits_equal": "",
    "elements": "", "differing": "", "worst_ulp": "", "note": "not run",
}  # fmt: skip


def main(path: Path) -> int:
    if detect() != H200:
        sys.exit(f"found {detect()}, needed {H200}: the emulated launches are those of an H200")
    rows = [row | BLANK for row in agreement.read(agreement.EMULATED)]
    entries = [Entry.of_row(row) for row in rows]
    start = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(agreement.build, entries))
    print(f"{len(rows)} rows compiled in {time.monotonic() - start:.0f} s")
    results = run_all(rows, entries, compiled, path)
    print(f"launched after {time.monotonic() - start:.0f} s")
    explain(rows, entries, results, path)
    print(f"done after {time.monotonic() - start:.0f} s\n")
    return summarise(rows)


def run_all(
    rows: list[Row], entries: list[Entry], compiled: list[Compiled], path: Path
) -> dict[int, torch.Tensor]:
    """Launch every row, and write the table after each; results by row.

    A kernel that faults takes the process's GPU context with it, so it is the last.
    """
    torch.zeros(1, device="cuda")  # makes the context in which cubins are loaded
    results = {}
    for index, entry in enumerate(entries):
        try:
            processor = CudaProcessor(Executable(compiled[index], agreement.artifacts()))
            found, results[index] = run_row(rows[index], entry, processor)
            rows[index] |= found
        except (KernelFailed, LaunchRefusedError, RuntimeError) as error:
            rows[index]["note"] = str(error)
        except KernelDied as died:
            rows[index]["note"] = str(died)
            break
        finally:
            agreement.write(path, rows)
    return results


def run_row(row: Row, entry: Entry, processor: Processor) -> tuple[Row, torch.Tensor]:
    """Run one row; its columns and the result."""
    known = agreement.identity(processor.compiled)
    if known["source"] != row["source"]:
        sys.exit(f"{entry.family} has changed since it was emulated; scripts/agreement.py emulate")
    operands = agreement.make_operands(entry)
    inputs = agreement.digest(operands.logical_a, operands.logical_b)
    bench = agreement.make_bench(entry, processor)
    result = agreement.launch(bench, moved(operands, processor.device), entry)
    hashed = agreement.digest(result)
    equal = hashed == row["emulated"]
    found = {
        "same_ptx": yes(known["ptx"] == row["ptx"]),
        "same_operands": yes(inputs == row["operands"]), "device": hashed,
        "device_ratio": f"{bench.ratio(operands, result, entry.case):.4f}",
        "bits_equal": yes(equal), "elements": str(result.numel()), "note": "",
    }  # fmt: skip
    return found | ({"differing": "0", "worst_ulp": "0"} if equal else {}), result


def yes(holds: bool) -> str:
    return "yes" if holds else "no"


def moved(operands: Arena, device: str) -> Arena:
    """The same bits on another device."""

    def move(operand: Operand) -> Operand:
        buffer, view = operand.buffer.to(device), operand.view
        place = (view.shape, view.stride(), view.storage_offset())
        return Operand(buffer, buffer.view(view.dtype).as_strided(*place))

    return dataclasses.replace(operands, a=move(operands.a), b=move(operands.b), c=move(operands.c))


def explain(
    rows: list[Row], entries: list[Entry], results: dict[int, torch.Tensor], path: Path
) -> None:
    """Emulate the rows that differ once more, and say by how much they do."""
    apart = [index for index, row in enumerate(rows) if row["bits_equal"] == "no"]
    spawn = multiprocessing.get_context("spawn")  # a forked process could not do without CUDA
    with ProcessPoolExecutor(
        max(1, (os.cpu_count() or 2) - 2), spawn, torch.set_num_threads, (1,)
    ) as pool:
        running = {pool.submit(emulated_bits, entries[index]): index for index in apart}
        done, _ = wait(running, timeout=float(os.environ.get("BUDGET_S", "240")))
        pool.shutdown(wait=False, cancel_futures=True)
    for future in done:
        index = running[future]
        if (error := future.exception()) is not None:
            rows[index]["note"] = f"not emulated on this machine: {error}"
            continue
        found, bits = future.result()
        device = results[index]
        rows[index] |= agreement.compare(torch.from_numpy(bits).view(device.dtype), device)
        if found["emulated"] != rows[index]["emulated"]:
            rows[index]["note"] = "the emulator gives other bits on this machine"
    agreement.write(path, rows)


def emulated_bits(entry: Entry) -> tuple[Row, Any]:
    """Emulate a row; its columns, and the result as 16-bit integers (a tensor would be shared)."""
    found, result = agreement.emulate(entry)
    return found, result.contiguous().view(torch.int16).numpy()


def summarise(rows: list[Row]) -> int:
    """Print what came of it; 1 if something is not as it must be."""
    for row in rows:
        if row["bits_equal"] != "yes" or row["note"]:
            by = f"{row['differing']} of {row['elements']} differ, worst {row['worst_ulp']} ulp"
            print(f"{agreement.label(row)} [{row['tunables']}]: {row['note'] or by}")
    print(agreement.table(rows))
    faults = {
        "rows not run, or with a note": [row for row in rows if row["note"]],
        "rows with other PTX or operands": [
            row for row in rows if "no" in (row["same_ptx"], row["same_operands"])
        ],
        "rows past the error bound": [row for row in rows if float(row["device_ratio"] or 0) > 1],
        "rows of a defined order whose bits differ": [
            row for row in rows
            if row["family"] in agreement.DEFINED_ORDER and row["bits_equal"] == "no"
        ],
    }  # fmt: skip
    equal = sum(row["bits_equal"] == "yes" for row in rows)
    print(f"{equal} of {len(rows)} rows agree in every bit")
    for what, found in faults.items():
        print(f"{len(found)} {what}")
    return int(any(faults.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
