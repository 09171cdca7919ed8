"""The documents name everything that they say they list."""

import dataclasses
import json
from pathlib import Path

import pytest

from l2tune.cli import app
from l2tune.runtime.emulator.findings import Fault
from l2tune.settings import Settings
from l2tune.spec.outcome import Finding
from l2tune.verify.checks import CHECKS

ROOT = Path(__file__).resolve().parents[1]
GATE = (ROOT / "docs/gate.md").read_text()
EMULATOR = (ROOT / "docs/emulator.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("finding", Finding)
def test_every_finding_is_in_the_gates_table(finding):
    assert f"\n| `{finding}` |" in GATE


@pytest.mark.parametrize(("stage", "check"), [(stage, name) for stage, name, _ in CHECKS])
def test_every_check_is_in_the_gates_table(stage, check):
    assert f"\n| {stage} | {check} |" in GATE


@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_every_setting_is_in_the_readme(field):
    assert f"| `L2TUNE_{field.name.upper()}` |" in README


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_is_in_the_emulators_table(fault):
    assert f"\n| `{fault}` " in EMULATOR


@pytest.mark.parametrize(
    "command", app.registered_commands, ids=lambda each: each.callback.__name__
)
def test_every_command_is_in_the_readme(command):
    assert f"| `l2tune {command.callback.__name__}" in README


def test_the_emulators_speed_table_is_what_was_measured():
    for case in json.loads((ROOT / "docs/results/emulator.json").read_text())["cases"]:
        row = f"| {case['first_s']:.2f} | {case['median_s']:.2f} | {case['warp_steps']:,} |"
        assert row in EMULATOR, case["case"]
