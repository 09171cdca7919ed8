"""How far the cost model is from the times that were measured; docs/measuring.md quotes it.

Estimates every instance in docs/results/nvidia-h200/{spine,seeds}.csv anew, which needs no GPU, and
writes docs/results/nvidia-h200/estimates.csv. Nothing was fitted to these times. Run as
`python scripts/estimates.py`.
"""

import csv
import sys
import tempfile
from pathlib import Path

from l2tune import compile, generate, measure, stages  # noqa: A004
from l2tune.runtime.worker import NO_GPU, Worker
from l2tune.spec.gpu import H200
from l2tune.spec.kernel import instantiate
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled
from l2tune.store import Artifacts

FOLDER = Path(__file__).resolve().parents[1] / "docs/results/nvidia-h200"
COLUMNS = [
    "m", "n", "k", "batch", "layout", "dtype", "kernel", "measured_us", "estimate_us",
    "estimate_over_measured", "largest_term",
]  # fmt: skip
Row = dict[str, str]


def measured() -> list[Row]:
    """The rows of both tables."""
    rows = []
    for name in ("spine", "seeds"):
        with (FOLDER / f"{name}.csv").open(newline="") as file:
            rows += list(csv.DictReader(file))
    return rows


def estimated(row: Row, worker: Worker, cache: Path) -> list[object] | None:
    """One line of the result; None if the seed has no such instance any more."""
    sizes = [int(row[name]) for name in "mnk"]
    batch = int(row.get("batch") or 1)
    key = GemmKey.dense(*sizes, gpu=H200, batch=batch, layout=row["layout"], dtype=row["dtype"])
    seed_id, _, rest = row["kernel"].removesuffix("]").partition("[")
    values = {name: int(value) for name, value in (x.split("=") for x in rest.split(","))}
    text = instantiate(generate.seed_text(seed_id), values)
    built = compile.compile_kernel(stages.source_for(text, key), Artifacts(cache))
    assert isinstance(built, Compiled), built
    work = measure.count(worker, built, key, cache_dir=cache)
    if work is None:
        return None
    found = measure.estimate(built, key, work)
    us = float(row["us"])
    return [
        *sizes, batch, key.layout, key.dtype, row["kernel"], f"{us:.2f}", f"{found.us:.2f}",
        f"{found.us / us:.2f}", max(found.terms_us, key=found.terms_us.__getitem__),
    ]  # fmt: skip


def main() -> int:
    """Estimate, write, and say the range of the ratios."""
    lines, left_out = [], 0
    with tempfile.TemporaryDirectory() as name, Worker(device=NO_GPU, spares=0) as worker:
        for row in measured():
            line = estimated(row, worker, Path(name))
            if line is None:
                left_out += 1
                continue
            lines.append(line)
            print(*line[:4], *line[6:])
    with (FOLDER / "estimates.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines])
    ratios = [float(str(line[-2])) for line in lines]
    print(f"{len(lines)} instances, estimate / measured {min(ratios)} to {max(ratios)}")
    return left_out


if __name__ == "__main__":
    sys.exit(main())
