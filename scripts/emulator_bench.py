"""How long the emulator takes for one tile of each tensor-core seed, on one core.

Writes docs/results/emulator.json. Run as `python scripts/emulator_bench.py`.
"""

import datetime
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from emulated_seeds import compiled, is_right, run  # noqa: E402
from seeds import MMA, WGMMA  # noqa: E402

ROUNDS = 5
CASES = [
    {
        "case": "mma_multistage, tile 128x128, k=64",
        "seed": "sm80/mma_multistage",
        "tunables": {**MMA, "TILE_M": 128, "TILE_N": 128, "STAGES": 3, "SPLIT": 1},
        "size": {"m": 128, "n": 128, "k": 64},
        "allowed_s": 2.0,
    },
    {
        "case": "wgmma_persistent, tile 128x128, k=128, through TMA",
        "seed": "sm90a/wgmma_persistent",
        "tunables": {**WGMMA, "CLUSTER": 1},
        "size": {"m": 128, "n": 128, "k": 128},
        "allowed_s": 3.0,
    },
]


def processor() -> str:
    """The CPU's name as Linux gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measure(case: dict) -> dict:
    """Seconds of each round; the first one parses the PTX, later ones find it parsed."""
    with tempfile.TemporaryDirectory() as cache:
        built = compiled(case["seed"], case["tunables"], Path(cache))
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        result = run(built, **case["size"], align=16)
        seconds.append(round(time.perf_counter() - start, 4))
        assert is_right(result), case["case"]
    steps = sum(launch.steps for launch in result.emulated.statistics)
    row = {"first_s": seconds[0], "median_s": sorted(seconds)[ROUNDS // 2], "warp_steps": steps}
    print(f"{case['case']}: {row['median_s']:.3f} s, allowed {case['allowed_s']} s")
    return case | row


def main() -> None:
    """Pin to one core, measure, write."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import numpy

    results = {
        "command": "python scripts/emulator_bench.py",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "processor": processor(), "cores_used": 1,
            "python": platform.python_version(), "numpy": numpy.__version__,
        },
        "rounds": ROUNDS,
        "cases": [measure(case) for case in CASES],
    }  # fmt: skip
    path = ROOT / "docs/results/emulator.json"
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
