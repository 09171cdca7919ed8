"""A pack is installed on its GPU: what passes the re-check serves, what does not is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from samples import TOOLS, timing
from typer.testing import CliRunner

from l2tune import generate, pipeline, settings, stages, verify
from l2tune.cli import app
from l2tune.runtime.versions import tools
from l2tune.spec.gpu import Gpu
from l2tune.spec.header import Origin
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Compiled, Verified
from l2tune.spec.record import Record
from l2tune.store import Pending, Registry
from l2tune.store.pack import write

pytestmark = pytest.mark.gpu
SERVE = """
import torch, l2tune
from l2tune.runtime.reference import error_ratio
a = torch.randn(100, 98, device="cuda").half()
b = torch.randn(98, 99, device="cuda").half()
print(error_ratio(a, b, l2tune.matmul(a, b)).item() <= 1)
"""


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "cache"
    root.mkdir(mode=0o700)
    with settings.override(cache_dir=root, native="off"):
        yield root


def record_of(compiled: Compiled, key: GemmKey) -> Record:
    timed = timing(key, verified=Verified(key=key, compiled=compiled, checks=()))
    return Record(
        key=key, outcome=Admitted(timing=timed, eager="kernel", graph="kernel"), origin=Origin(),
        tools=TOOLS, created="2026-11-30",
    )  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_kernel_that_passes_becomes_a_record_of_this_machine(
    gpu: Gpu, compiled: Callable[..., Compiled], fresh: Path, tmp_path: Path
) -> None:
    key = GemmKey.dense(100, 99, 98, gpu=gpu)
    write(tmp_path / "p", gpu, [record_of(compiled("sm80/naive", key), key)])
    done = run("pack", "install", tmp_path / "p", "--budget-s", 1, "--json")
    assert done.exit_code == 0, done.output
    found = Registry(fresh).get(key)
    assert found is not None
    assert found.tools == tools()
    assert {check.check for check in found.verified.checks} == {
        *verify.KERNEL_CHECKS, *verify.KEY_CHECKS
    }  # fmt: skip
    assert "torch" in found.outcome.timing.baselines
    again = json.loads(run("pack", "install", tmp_path / "p", "--json").stdout)
    assert (again["rechecked"], again["skipped"]) == ([], 1)
    environment = os.environ | {"L2TUNE_CACHE_DIR": str(fresh)}
    answer = subprocess.run(
        [sys.executable, "-c", SERVE], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "True", answer.stderr


def test_a_call_has_a_kernel_rechecked_that_waits(
    gpu: Gpu, compiled: Callable[..., Compiled], fresh: Path, tmp_path: Path
) -> None:
    key = GemmKey.dense(100, 99, 98, gpu=gpu)
    write(tmp_path / "p", gpu, [record_of(compiled("sm80/naive", key), key)])
    assert run("pack", "install", tmp_path / "p", "--limit", 0).exit_code == 0
    assert Registry(fresh).get(key) is None
    program = SERVE + "from l2tune.dispatch import waiting\nprint(waiting._rechecking.wait())\n"
    answer = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"L2TUNE_CACHE_DIR": str(fresh)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert answer.stdout.split() == ["True", "0"], answer.stderr
    assert Registry(fresh).get(key) is not None
    assert Pending(fresh).keys() == []


def test_a_wrong_kernel_is_refused_by_fixed_cases(
    gpu: Gpu, bench: pipeline.Bench, fresh: Path, tmp_path: Path
) -> None:
    key = GemmKey.dense(100, 99, 98, gpu=gpu)
    text = generate.seed_text("sm80/naive")
    wrong = text.replace("p < k; ++p", "p < k - (k > 128); ++p")  # right for the key itself
    assert wrong != text
    built = stages.build(stages.source_for(wrong, key), key, bench)
    assert isinstance(built, Compiled), built
    write(tmp_path / "p", gpu, [record_of(built, key)])
    done = run("pack", "install", tmp_path / "p", "--json")
    assert done.exit_code == 1
    (refused,) = json.loads(done.stdout)["refused"]
    assert "wrong_value" in refused["reason"]
    assert Registry(fresh).get(key) is None
    assert Pending(fresh).keys() == []
