"""scripts/results: from a CSV to the README's table and plot."""

import subprocess
import sys
from pathlib import Path

import pytest
import seeds
from samples import interval

from l2tune.export import results

SCRIPT = Path(__file__).parents[2] / "scripts" / "results"
README = "# x\n<!-- results:begin -->\nold\n<!-- results:end -->\nafter\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a README and a CSV: 1000 us beside torch's 1200, and one with a cuBLAS time."""
    hopper, naive = seeds.hopper(), seeds.naive()
    timing = naive.outcome.timing
    timed = timing.model_copy(update={"baselines": {**timing.baselines, "cublas": interval(600.0)}})
    outcome = naive.outcome.model_copy(update={"timing": timed, "graph": "torch"})
    rows = [hopper, naive.model_copy(update={"outcome": outcome})]
    results.append(tmp_path / "spine.csv", rows)
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    options = ["--csv", folder / "spine.csv", "--readme", folder / "README.md", *more]
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_table_replaces_what_stands_between_the_marks(folder: Path) -> None:
    done = run(folder, "--no-page")
    assert done.returncode == 0, done.stderr
    text = (folder / "README.md").read_text()
    assert text.startswith("# x\n<!-- results:begin -->\n| m x n x k |")
    assert text.endswith("|\n<!-- results:end -->\nafter\n")
    assert "old" not in text
    lines = text.splitlines()
    assert lines[4].startswith("| 512x768x512 x4 tn float16 | `sm90a/wgmma_persistent` | 1000.00 |")
    assert "| **1.20** |" in lines[4]
    assert "| 1200.00 | 1200.00 | **1.00** | 2.00 |" in lines[5]
    assert lines[6].startswith("| geometric mean | | | | **1.10** | 2.00 |  |")


def test_the_plot_is_made_from_the_same_rows(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run(folder).returncode == 0
    page = (folder / "spine.html").read_text()
    assert page.count("<svg") == 2  # both products are batched: no maps
    assert str(folder) not in page
    picture = (folder / "spine.svg").read_bytes()
    assert (folder / "spine.png").stat().st_size > 5000
    run(folder, "--no-page")
    assert (folder / "spine.svg").read_bytes() == picture


def test_a_readme_without_marks_is_left_alone(folder: Path) -> None:
    (folder / "README.md").write_text("# x\n")
    done = run(folder)
    assert done.returncode == 1
    assert "<!-- results:begin -->" in done.stderr
    assert (folder / "README.md").read_text() == "# x\n"
