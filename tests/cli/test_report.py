"""`l2tune report`, which needs no GPU."""

import json
from pathlib import Path

import seeds
from click.testing import Result
from typer.testing import CliRunner

from l2tune.cli import app
from l2tune.export import results


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_page_is_made_of_tables_and_their_machines(tmp_path: Path) -> None:
    results.append(tmp_path / "a.csv", [seeds.naive()])
    results.append(tmp_path / "b.csv", [seeds.hopper()])
    page = tmp_path / "page.html"
    done = run("report", tmp_path / "a.csv", tmp_path / "b.csv", "-o", page, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["summary"][0] == {"what": "torch.matmul / l2tune", "value": "1.200", "over": 2}
    text = page.read_text()
    assert "2 products" in text
    assert f"{seeds.hopper().key.gpu.name}, 132 multiprocessors" in text


def test_a_missing_or_empty_table_fails_in_a_sentence(tmp_path: Path) -> None:
    done = run("report", tmp_path / "none.csv")
    assert done.exit_code == 1
    assert "cannot read" in done.stderr
    results.append(tmp_path / "empty.csv", [])
    done = run("report", tmp_path / "empty.csv", "-o", tmp_path / "x.html")
    assert done.exit_code == 1
    assert "found no row of results" in done.stderr
