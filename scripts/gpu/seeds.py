"""Find each tiled seed's best instance at 4096^3 and 8192^3, and confirm its time beside torch's.

python scripts/gpu/seeds.py RESULT.csv
"""

import csv
import sys
from pathlib import Path

from l2tune import generate, pipeline, stages, verify
from l2tune.runtime.device import detect
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Timing, Verified

SEEDS = ("sm90a/wgmma_persistent", "sm80/mma_multistage", "triton/matmul")
SIZES = (4096, 8192)


def main(result: Path) -> None:
    gpu = detect()
    assert gpu is not None
    rows = []
    with pipeline.Bench.open(budget_s=4.0) as bench:
        for size in SIZES:
            key = GemmKey.dense(size, size, size, gpu=gpu)
            sources = generate.candidates(key)
            for seed in SEEDS:
                family = [source for source in sources if source.header.id == seed]
                ranked, _ = stages.rank(stages.build_all(family, key, bench), key, bench)
                best = ranked[0][0]
                proof = verify.verify(
                    bench.worker, best, key, cache_dir=bench.cache_dir, seed=bench.seed
                )
                assert isinstance(proof, Verified), proof
                bench.worker.renew()
                timing = stages.confirm(proof, key, bench, baselines="torch")
                assert isinstance(timing, Timing), timing
                rows.append(row(key, best.source.name, timing))
                print(f"{size}^3 {rows[-1]['speedup']}x of torch.matmul: {best.source.name}")
    with result.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def row(key: GemmKey, name: str, timing: Timing) -> dict[str, object]:
    torch = timing.baselines["torch"]
    return {
        "m": key.m, "n": key.n, "k": key.k, "layout": key.layout, "dtype": key.dtype,
        "kernel": name, "us": f"{timing.gpu.us:.2f}", "us_lo": f"{timing.gpu.lo:.2f}",
        "us_hi": f"{timing.gpu.hi:.2f}", "torch_us": f"{torch.us:.2f}",
        "torch_us_lo": f"{torch.lo:.2f}", "torch_us_hi": f"{torch.hi:.2f}",
        "speedup": f"{timing.speedup:.3f}", "clock_mhz": f"{timing.clock_mhz:.0f}",
        "power_w": f"{timing.power_w:.0f}", "run_id": timing.run_id,
    }  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
