"""The documents name everything that they say they list."""

import dataclasses
from pathlib import Path

import pytest

from l2tune.settings import Settings
from l2tune.spec.outcome import Finding
from l2tune.verify.checks import CHECKS

ROOT = Path(__file__).resolve().parents[1]
GATE = (ROOT / "docs/gate.md").read_text()
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
