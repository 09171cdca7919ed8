"""Time the kernels that the policy `nearest` would take on random shapes, beside torch.matmul.

    python scripts/gpu/nearest.py RESULT.csv [SECONDS]

Shapes are drawn off the grid of tuned sizes (off_grid.py) with a fixed seed, in the layout and
dtype that most of the cache's records have. The best kernel is timed also where the model leaves
the shape to torch, so that its doubt can be judged. Rows are appended; a run that was stopped goes
on.
"""

import csv
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from off_grid import JUDGED_BY, draw

from l2tune import dispatch, measure, pipeline, stages, verify
from l2tune.dispatch import nearest
from l2tune.errors import InfrastructureError
from l2tune.generate.nearest import Choice, Nearest
from l2tune.runtime.device import detect
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Refuted
from l2tune.store.rough import shipped_rough

BUDGET_S = 0.15
CHECKS = ("smoke", "key_values")
COLUMNS = (
    "m", "n", "k", "layout", "dtype", "align", "choice", "kernel", "predicted_us",
    "predicted_torch_us", "doubt", "us", "us_lo", "us_hi", "torch_us", "torch_us_lo", "torch_us_hi",
    "error_ratio",
)  # fmt: skip
Row = dict[str, str]


def decided(key: GemmKey, choice: Choice | None) -> Row:
    """The model's half of a row."""
    row = dict.fromkeys(COLUMNS, "") | {
        "m": str(key.m), "n": str(key.n), "k": str(key.k), "layout": key.layout,
        "dtype": key.dtype, "align": str(key.align), "choice": "torch",
    }  # fmt: skip
    if choice is None:
        return row
    return row | {
        "choice": "kernel" if choice.serves else "torch",
        "kernel": choice.record.verified.compiled.source.name,
        "predicted_us": f"{choice.us:.3f}", "predicted_torch_us": f"{choice.torch_us:.3f}",
        "doubt": f"{choice.doubt:.4f}",
    }  # fmt: skip


def timed(key: GemmKey, choice: Choice, bench: pipeline.Bench) -> Row:
    """The clock's half, of the kernel that the model would take; what is refuted has no time."""
    source = choice.record.verified.compiled.source
    compiled = stages.build(source, key, bench)
    if not isinstance(compiled, Compiled):
        return {"error_ratio": "inf"}
    proof = verify.verify(
        bench.worker, compiled, key, cache_dir=bench.cache_dir, seed=JUDGED_BY, checks=CHECKS
    )
    if isinstance(proof, Refuted):
        print(f"{key.label}: {source.name} refuted: {proof.detail}")
        return {"error_ratio": "inf"}
    (found,) = measure.measure(
        bench.worker, key, [proof], cache_dir=bench.cache_dir, through=dispatch.Pinned,
        baselines="torch", triton=None, budget_s=BUDGET_S, seed=JUDGED_BY,
    )  # fmt: skip
    if isinstance(found, Refuted):
        print(f"{key.label}: {source.name} refuted while timing: {found.detail}")
        return {"error_ratio": "inf"}
    times = {"us": found.gpu, "torch_us": found.baselines["torch"]}
    row = {"error_ratio": f"{max(check.worst_ratio for check in proof.checks):.4f}"}
    for name, one in times.items():
        row |= {name: f"{one.us:.3f}", f"{name}_lo": f"{one.lo:.3f}", f"{name}_hi": f"{one.hi:.3f}"}
    return row


def read(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def summary(rows: Sequence[Row]) -> str:
    """What the policy gains, what it breaks, and what its doubt costs."""
    clocked = [row for row in rows if row["us"]]
    served = [row for row in clocked if row["choice"] == "kernel"]
    slower = [row for row in served if float(row["us_lo"]) > float(row["torch_us_hi"])]
    left = [row for row in clocked if row["choice"] == "torch"]
    missed = [row for row in left if float(row["us_hi"]) < float(row["torch_us_lo"])]
    wrong = [row for row in rows if row["error_ratio"] and not float(row["error_ratio"]) <= 1.0]
    share = 1.0 - len(slower) / len(rows) if rows else 1.0
    return (
        f"{len(rows)} shapes: {100 * share:.1f} % at least as fast as torch.matmul (beyond noise),"
        f" geometric mean {mean(served, len(rows)):.3f};"
        f" {len(served)} served, geometric mean {mean(served, len(served)):.3f},"
        f" {len(slower)} of them slower; {len(left)} doubted, {len(missed)} of them faster,"
        f" had they been served {mean(left, len(left)):.3f}; {len(wrong)} refuted"
    )


def mean(rows: Sequence[Row], count: int) -> float:
    """Geometric mean of the speed-ups, where all but `rows` of `count` are 1."""
    logs = [math.log(float(row["torch_us"]) / float(row["us"])) for row in rows]
    return math.exp(sum(logs) / count) if count else 1.0


def main(path: Path, limit_s: float) -> int:
    gpu = detect()
    assert gpu is not None
    end = time.monotonic() + limit_s
    with pipeline.Bench.open(budget_s=BUDGET_S, emulators=0) as bench:
        records = list(nearest.usable(bench.registry, gpu))
        if not records:
            sys.exit(f"{bench.cache_dir} holds no record for {gpu}; install a pack, or tune")
        picks = Counter((record.key.layout, record.key.dtype) for record in records)
        (layout, dtype), _ = picks.most_common(1)[0]
        model = Nearest(records, shipped_rough(gpu))
        keys, rows = list(draw(gpu, layout=layout, dtype=dtype, seed=JUDGED_BY)), read(path)
        done = {identity(row) for row in rows}
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if not rows:
                writer.writeheader()
            for key in keys:
                choice = model.choose(key)
                row = decided(key, choice)
                if identity(row) in done:
                    continue
                if time.monotonic() > end:
                    break
                try:
                    row |= {} if choice is None else timed(key, choice, bench)
                except InfrastructureError as error:  # the next run tries it again
                    print(f"{key.label}: {error}")
                    continue
                writer.writerow(row)
                file.flush()
                rows.append(row)
                print(f"{key.label} {row['choice']} {row['us']} / torch {row['torch_us']} us")
    print(f"{len(records)} records; {len(rows)} of {len(keys)} shapes done")
    print(summary(rows))
    return 0 if len(rows) >= len(keys) else 75  # EX_TEMPFAIL: call it again


def identity(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in ("m", "n", "k", "layout", "dtype"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 540.0))
