"""Check what a fresh process serves from the cache: right results, and never slower than torch.

    python scripts/gpu/serve.py KEYS.csv RESULT.json

Operands rotate beyond the L2, as they did when the records were made. Prints one line for each key
and exits with 1 if a result is outside the bound, or if l2tune.matmul is slower than torch.matmul
beyond the noise on the eager or on the graph clock.
"""

import csv
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import l2tune
from l2tune.measure import interval
from l2tune.measure.operands import OperandSets, sized
from l2tune.runtime.device import detect
from l2tune.runtime.reference import error_ratio
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Interval

ROUNDS, WARM_UP = 60, 10
MARGIN = 1.02
"""Two runs of one kernel differ by less than this; torch must win by more to count as faster."""

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def eager_us(product: Product, sets: OperandSets) -> float:
    """One synchronised call on operands picked at random."""
    index = random.randrange(sets.count)
    torch.cuda.synchronize()
    start = time.perf_counter()
    product(sets.a[index], sets.b[index])
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6


def captured(product: Product, sets: OperandSets) -> tuple[torch.cuda.CUDAGraph, list[object]]:
    """A graph with one call for each operand set, and the results it writes."""
    product(sets.a[0], sets.b[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results: list[object] = [product(a, b) for a, b in zip(sets.a, sets.b, strict=True)]
    return graph, results


def graph_us(graph: torch.cuda.CUDAGraph, launches: int) -> float:
    """Time of one launch in a replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / launches


def compare(ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[Interval, Interval]:
    """Time both in alternating order; the first rounds warm up."""
    samples: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + WARM_UP):
        pair = [(ours, samples[0]), (theirs, samples[1])]
        for clock, found in pair if turn % 2 else reversed(pair):
            found.append(clock())
    return interval(samples[0][WARM_UP:]), interval(samples[1][WARM_UP:])


def torch_wins(ours: Interval, theirs: Interval) -> bool:
    """Beyond both intervals and the margin."""
    return theirs.beats(ours) and ours.us > MARGIN * theirs.us


def serve(key: GemmKey) -> dict[str, object]:
    """Compare the two functions on one key."""
    sets = sized(key, seed=7)
    result = l2tune.matmul(sets.a[0], sets.b[0])
    ratio = error_ratio(sets.a[0], sets.b[0], result).item()
    eager = compare(lambda: eager_us(l2tune.matmul, sets), lambda: eager_us(torch.matmul, sets))
    our_graph, theirs_graph = captured(l2tune.matmul, sets), captured(torch.matmul, sets)
    graph = compare(
        lambda: graph_us(our_graph[0], sets.count), lambda: graph_us(theirs_graph[0], sets.count)
    )
    return {
        "key": str(key), "error_ratio": ratio, "eager_us": eager[0].us,
        "torch_eager_us": eager[1].us, "graph_us": graph[0].us, "torch_graph_us": graph[1].us,
        "slower": torch_wins(*eager) or torch_wins(*graph),
    }  # fmt: skip


def main(keys: Path, result: Path) -> int:
    """Serve every key of a file."""
    gpu = detect()
    assert gpu is not None
    rows, failed = [], False
    for row in csv.DictReader(keys.open()):
        key = GemmKey.dense(
            int(row["m"]), int(row["n"]), int(row["k"]), gpu=gpu, batch=int(row["batch"]),
            layout=row["layout"], dtype=row["dtype"],
        )  # fmt: skip
        found = serve(key)
        torch.cuda.empty_cache()
        rows.append(found)
        failed |= bool(found["slower"]) or not found["error_ratio"] <= 1.0
        print(
            f"{key.label}: error/bound {found['error_ratio']:.2f}"
            f"  eager {found['eager_us']:.1f} / torch {found['torch_eager_us']:.1f} us"
            f"  graph {found['graph_us']:.2f} / torch {found['torch_graph_us']:.2f} us"
            f"{'  SLOWER' if found['slower'] else ''}"
        )
        result.write_text(json.dumps(rows, indent=1))
    print(f"{len(rows)} keys served, {'FAILED' if failed else 'all right and none slower'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
