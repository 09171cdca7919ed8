"""How close the search's pick is to the best of all instances, on some of the 1,000 shapes.

    python scripts/gpu/ablation.py RESULT.csv [COUNT]

Rough times of every instance of every seed that admits the product, and which of them the search
would have timed: by the model fitted to what shipped, to nothing, and without the product's own
rough times. All in one process, so the figures compare.
"""

import csv
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from l2tune import generate, pipeline, stages
from l2tune.cli.keys import grid_keys
from l2tune.export.summary import geometric_mean
from l2tune.generate import Fitted
from l2tune.runtime.device import detect
from l2tune.spec.key import GemmKey
from l2tune.stages import Bench
from l2tune.store.rough import Rough, shipped_rough

SEED, TIMED = 0, 32
COLUMNS = ("m", "n", "k", "instances", "best_us", "fitted_us", "unfitted_us", "torch_us", "best",
           "fitted", "unfitted")  # fmt: skip


def row(key: GemmKey, rough: Sequence[Rough], bench: Bench) -> dict[str, object]:
    """Time all instances of a product, and look up what a search would have found."""
    everything = generate.candidates(key, per_family=10_000)
    timed, torch_us = stages.rank(stages.build_all(everything, key, bench), key, bench)
    us = {found.source.name: taken_us for found, taken_us in timed}
    picks = {"best": min(us, key=us.__getitem__)}
    others = generate.fit(one for one in rough if one[2] != key)  # had it never been timed
    for name, model in (("fitted", others), ("unfitted", Fitted())):
        shortlist = [source.name for source in generate.shortlist(key, model, count=TIMED)]
        picks[name] = min((n for n in shortlist if n in us), key=us.__getitem__)
    times = {f"{name}_us": f"{us[pick]:.3f}" for name, pick in picks.items()}
    sizes = {"m": key.m, "n": key.n, "k": key.k, "instances": len(us)}
    return sizes | times | {"torch_us": f"{torch_us:.3f}"} | picks


def main(result: Path, count: int) -> None:
    gpu = detect()
    assert gpu is not None
    rough = shipped_rough(gpu)
    keys = random.Random(SEED).sample(grid_keys("cuda-l2", gpu), count)
    rows = []
    with result.open("w", newline="") as file, pipeline.Bench.open(emulators=0) as bench:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for key in keys:
            rows.append(row(key, rough, bench))
            writer.writerow(rows[-1])
            file.flush()
            print(rows[-1], flush=True)
    for name in ("fitted", "unfitted"):
        losses = [float(r[f"{name}_us"]) / float(r["best_us"]) for r in rows]
        mean = geometric_mean(losses)
        close = sum(loss <= 1.01 for loss in losses)
        print(f"{name}: {mean:.4f} of the best on average, within 1 % on {close} of {len(rows)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
