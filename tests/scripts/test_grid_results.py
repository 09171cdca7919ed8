"""scripts/grid_results: from a CSV to the README's table of goals and its maps."""

import subprocess
import sys
from pathlib import Path

import pytest
import seeds
from samples import interval

from l2tune.export import results

SCRIPT = Path(__file__).parents[2] / "scripts" / "grid_results"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A README, and a CSV of one product: 1000 us beside torch's 1200, and 900 at random gaps."""
    record = seeds.naive()
    timing = record.outcome.timing
    baselines = {**timing.baselines, "cublaslt_autotuned": interval(800.0)}
    server = {"kernel": interval(900.0), "torch": interval(990.0)}
    timed = timing.model_copy(update={"baselines": baselines, "server": server})
    outcome = record.outcome.model_copy(update={"timing": timed})
    results.append(tmp_path / "grid.csv", [record.model_copy(update={"outcome": outcome})])
    for name in ("README.md", "kernels.md"):
        (tmp_path / name).write_text("a\n<!-- grid:begin -->\nold\n<!-- grid:end -->\nb\n")
    return tmp_path


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    options = ["--csv", folder / "grid.csv", "--readme", folder / "README.md"]
    options += ["--kernels", folder / "kernels.md", *more]
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_table_says_what_is_reached_and_over_how_many(folder: Path) -> None:
    done = run(folder, "--no-page")
    assert done.returncode == 0, done.stderr
    text = (folder / "README.md").read_text()
    assert text.startswith("a\n<!-- grid:begin -->\n|")
    assert text.endswith("|\n<!-- grid:end -->\nb\n")
    assert "| over `torch.matmul` | 1.20 | 1.200 (1) | 1.500 |" in text
    assert "| 0.800 (1) | 1 |" in text
    assert "| 8192^3, 12288^3, 16384^3 over cuBLAS | 1.04 | not measured | 1 |" in text
    kernels = (folder / "kernels.md").read_text()
    assert "| 1 | " in kernels
    assert "| 1.200 | sm80/naive 1 |" in kernels
    assert "| single calls at random gaps, kernel over `torch.matmul` |  | 1.100 (1) |  |" in text


def test_maps_and_page_are_made(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "grid.png").stat().st_size > 5000
    assert "<svg" in (folder / "grid.html").read_text()


def test_a_readme_without_the_marks_is_told_to_have_them(folder: Path) -> None:
    (folder / "README.md").write_text("nothing")
    done = run(folder, "--no-page")
    assert done.returncode == 1
    assert "needed the lines <!-- grid:begin -->" in done.stderr
