"""Writes scripts/gpu/off_grid.csv: shapes off the grid for the policy `nearest` to learn from.

    python scripts/gpu/off_grid.py

The grid's sizes are all multiples of 64, at least 64: rows that start between two lines of the L2,
few rows and short k are not among them. What is tuned here is not what scripts/gpu/nearest.py
judges the policy by: the same distribution, another seed.
"""

import csv
import math
import random
from collections.abc import Iterator
from pathlib import Path

from l2tune.spec.gpu import H200, Gpu
from l2tune.spec.key import GemmKey

LEARNED_FROM, JUDGED_BY = 1, 0
"""Seeds."""
COUNT, LARGEST, MAX_BYTES = 200, 16384, 2e9


def draw(gpu: Gpu, *, layout: str, dtype: str, seed: int) -> Iterator[GemmKey]:
    """Sizes log-uniform; of every third shape at least one size is no multiple of 8."""
    rng = random.Random(seed)
    drawn = 0
    while drawn < COUNT:
        ragged = rng.choice((1, 2, 3, 4, 5, 6, 7)) if drawn % 3 == 2 else 0  # a bit for each size
        sizes = [_size(rng, ragged=bool(ragged >> place & 1)) for place in range(3)]
        key = GemmKey.dense(*sizes, gpu=gpu, layout=layout, dtype=dtype)
        if key.bytes_moved <= MAX_BYTES:
            drawn += 1
            yield key


def _size(rng: random.Random, *, ragged: bool) -> int:
    size = math.exp(rng.uniform(0.0, math.log(LARGEST)))
    if ragged:
        whole = round(size)
        return whole if whole % 8 else whole - 1
    return max(8, round(size / 8) * 8)


def main() -> None:
    """Write the file."""
    with Path(__file__).with_name("off_grid.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("m", "n", "k", "layout", "dtype"))
        for key in draw(H200, layout="nn", dtype="float16", seed=LEARNED_FROM):
            writer.writerow((key.m, key.n, key.k, key.layout, key.dtype))


if __name__ == "__main__":
    main()
