"""A re-check's gate, every check of it, runs where Hypothesis is not installed."""

import subprocess
import sys
from pathlib import Path

import exploit_files

from l2tune import pipeline, stages
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled
from l2tune.verify.checks import CHECKS

PROGRAM = """
import sys
sys.modules["hypothesis"] = None
from pathlib import Path
from l2tune.spec.outcome import Compiled
from l2tune.verify import gate
gate.report = lambda name: None
compiled = Compiled.model_validate_json(sys.stdin.read())
from l2tune.spec.key import GemmKey
request = gate.Request(
    compiled, GemmKey.parse(sys.argv[1]), Path(sys.argv[2]), seed=1, checks=None,
    max_examples=0, emulated=True, budget_s=0.0,
)
found = gate.verify_here(request)
print(found if not isinstance(found, tuple) else [check.check for check in found])
"""
KEY = GemmKey.dense(17, 8, 24, gpu=H200)


def test_the_gate_of_fixed_cases_needs_no_hypothesis(cache_dir: Path) -> None:
    source = stages.source_for(exploit_files.text_of("honest_tiled"), KEY)
    built = stages.build(source, KEY, pipeline.Bench(None, cache_dir))
    assert isinstance(built, Compiled), built
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(KEY), str(cache_dir)], input=built.model_dump_json(),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([name for _, name, _ in CHECKS])
