"""The whole way: tune in one process, serve from another."""

import os
import subprocess
import sys

import pytest

from l2tune import pipeline
from l2tune.spec.key import GemmKey

pytestmark = pytest.mark.gpu


def test_tuning_then_serving_from_another_process(bench, gpu):
    key = GemmKey.dense(512, 64, 4096, gpu=gpu)
    record = pipeline.tune(key, bench=bench)
    assert record.outcome.timing.verified.examples > 100
    code = (
        "import torch, l2tune\n"
        "from l2tune.runtime.reference import error_ratio\n"
        "a = torch.randn(512, 4096, device='cuda').half()\n"
        "b = torch.randn(4096, 64, device='cuda').half()\n"
        "print(error_ratio(a, b, l2tune.matmul(a, b)).item() <= 1)\n"
    )
    environment = {"L2TUNE_CACHE_DIR": str(bench.cache_dir)}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert answer.stdout.strip() == "True", answer.stderr
