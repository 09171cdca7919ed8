"""`import l2tune` is cheap: what only tuning needs is imported when it is asked for."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys, time
start = time.perf_counter()
import torch
torch_s = time.perf_counter() - start
import l2tune
total_s = time.perf_counter() - start
print(json.dumps({
    "modules": sorted(sys.modules), "cuda": torch.cuda.is_initialized(),
    "ms": round(1000 * (total_s - torch_s)),
}))
"""
TUNING_ONLY = {"hypothesis", "triton", "cupy", "nvmath", "rich", "typer", "matplotlib", "elftools"}


def test_import_touches_no_gpu_and_nothing_that_only_tuning_needs():
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    print(f"import l2tune: {found['ms']} ms beyond torch")  # noqa: T201  # shown with -s
    assert not found["cuda"]
    loaded = set(found["modules"])
    assert not TUNING_ONLY & loaded
    absent = [
        "admit",
        "cli",
        "compile",
        "export",
        "generate",
        "measure",
        "pipeline",
        "stages",
        "verify",
    ]
    assert not {f"l2tune.{name}" for name in absent} & loaded


def test_lazy_names_are_there_and_unknown_ones_are_not():
    import l2tune

    assert all(getattr(l2tune, name) for name in l2tune.__all__)
    assert not hasattr(l2tune, "nothing")
