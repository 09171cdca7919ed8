"""The main job without a GPU, for real: search, emulate, prove, estimate, store, show, export."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from l2tune import pipeline, settings
from l2tune.cli import app
from l2tune.export import parse_export
from l2tune.spec.gpu import A100
from l2tune.spec.header import parse
from l2tune.spec.key import GemmKey
from l2tune.store import Registry

KEY = GemmKey.dense(16, 24, 40, gpu=A100)
TUNE = ("tune", "--gpu", "a100", "--shape", 16, 24, 40)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """What the command printed; its cache is in force."""
    root = tmp_path_factory.mktemp("cache")
    root.chmod(0o700)
    little = {"emulator_budget_s": 0.0, "emulated_gate_budget_s": 0.0}
    with pytest.MonkeyPatch.context() as patch, settings.override(cache_dir=root, **little):
        patch.setattr(pipeline, "_ESTIMATED_PER_FAMILY", 1)
        done = run(*TUNE, "--json")
        assert done.exit_code == 0, done.output
        yield json.loads(done.stdout)


def test_a_kernel_is_proven_on_the_emulator_and_its_time_estimated(tuned: dict) -> None:
    (row,) = tuned["estimated"]
    assert (row["key"], row["processor"]) == (str(KEY), "emulator")
    assert row["estimate_us"] >= row["floor_us"] > 0
    assert not {"us", "torch_us", "speedup"} & row.keys()
    found = Registry(settings.current().cache_dir).get_estimate(KEY)
    checks = {check.check: check.examples for check in found.verified.checks}
    assert {"emulator", "smoke", "integers", "values"} <= checks.keys()
    assert checks["emulator"]
    assert checks["integers"]


def test_it_is_no_record(tuned: dict) -> None:
    registry = Registry(settings.current().cache_dir)
    assert registry.get(KEY) is None
    assert list(registry.records()) == []
    assert json.loads(run("show", "--json").stdout) == []


def test_a_key_that_is_estimated_is_not_estimated_again(tuned: dict) -> None:
    again = json.loads(run(*TUNE, "--json").stdout)
    assert (again["estimated"], again["skipped"]) == ([], [str(KEY)])


def test_show_lists_it_under_a_title_that_says_what_it_is(tuned: dict) -> None:
    done = run("show")
    assert "Estimates: proven on the emulator, never timed" in done.stdout
    assert "estimated us (not" in done.stdout
    assert "speedup" not in done.stdout
    assert "none measured" in run("show", "16x24x40").stdout
    assert json.loads(run("show", "--estimates", "--json").stdout) == tuned["estimated"]


def test_export_needs_to_be_asked_for_it_and_writes_no_time(tuned: dict, tmp_path: Path) -> None:
    refused = run("export", "--shape", 16, 24, 40, "-o", tmp_path)
    assert refused.exit_code == 1
    assert "--estimates" in refused.stderr
    done = run("export", "--estimates", "-o", tmp_path, "--json")
    (entry,) = json.loads(done.stdout)
    text = Path(entry["file"]).read_text()
    claims = parse(text)[1].verified
    assert (claims["processor"], claims["timed"]) == ("emulator", False)
    found = Registry(settings.current().cache_dir).get_estimate(KEY)
    assert parse_export(text) == found.verified.compiled.source


def test_what_cannot_be_estimated_is_wrong_usage(cache_dir: Path, tmp_path: Path) -> None:
    assert run("tune", "--gpu", "b200", "--shape", 1, 2, 3).exit_code == 2
    done = run(*TUNE, "--results", tmp_path / "rows.csv")
    assert done.exit_code == 2
    assert "measured times" in done.output
