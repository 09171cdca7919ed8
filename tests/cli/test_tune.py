"""`tune` and `bench` around the pipeline, which is replaced: no GPU is used."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import seeds
from click.testing import Result
from samples import TOOLS, interval
from typer.testing import CliRunner

from l2tune import generate, measure, pipeline
from l2tune.cli import app
from l2tune.errors import InfrastructureError, UnsupportedProblemError
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Finding, Refuted
from l2tune.spec.record import Record
from l2tune.store import Chosen, Ranked


class NoWorker:
    """Stands in for a worker process."""

    def __init__(self, **_: Any) -> None: ...

    def close(self) -> None: ...

    def renew(self) -> None: ...


class Tuner:
    """Stands in for `steps.settle`, behind a search that finds the naive kernel for anything."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failures: list[Exception] = []

    def prepare(self, key: GemmKey, **_: Any) -> list[Compiled]:
        self.asked.append(key.label)
        if self.failures:
            raise self.failures.pop(0)
        return [self.record(key).verified.compiled]

    def search(
        self, compiled: list[Compiled], key: GemmKey, *, bench: pipeline.Bench, check: bool
    ) -> None:
        bench.searches.put_ranked(
            Ranked(key=key, torch_us=1.0, found=(), tools=TOOLS, seeds=generate.seeds_digest())
        )

    def choose(self, ranked: Any, key: GemmKey, *, bench: pipeline.Bench) -> None:
        verified = self.record(key).verified
        bench.searches.put_chosen(Chosen(verified=verified, triton=None, tools=TOOLS))

    def settle(self, chosen: Chosen, *, bench: pipeline.Bench, gap_us: float | None) -> Record:
        record = self.record(chosen.verified.key)
        bench.registry.put(record)
        return record

    def record(self, key: GemmKey) -> Record:
        return seeds.seed_record("sm80/naive", {}, key)


@pytest.fixture
def tuner(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Tuner:
    made = Tuner()
    for module in ("keys", "tune"):
        monkeypatch.setattr(f"l2tune.cli.{module}.detect", lambda device=0: H200)
    for module in ("stages", "fleet.benches"):
        monkeypatch.setattr(f"l2tune.{module}.Worker", NoWorker)
        monkeypatch.setattr(f"l2tune.{module}.native.build_if_missing", lambda: None)
    for step in ("prepare", "search", "choose", "settle"):
        monkeypatch.setattr(f"l2tune.steps.{step}", getattr(made, step))
    monkeypatch.setattr("l2tune.steps.restore", lambda chosen, *, bench: None)
    for module in ("cli.tune", "fleet.tuning"):
        monkeypatch.setattr(f"l2tune.{module}.tools", lambda: TOOLS)
    return made


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_without_a_gpu_bench_says_so_and_what_can_be_done(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("l2tune.cli.keys.detect", lambda device=0: None)
    done = run("bench", "--shape", 1, 2, 3)
    assert done.exit_code == 1
    assert "found no GPU 0" in done.stderr
    assert "l2tune verify FILE" in done.stderr
    assert done.stdout == ""


def test_keys_with_a_valid_record_are_not_tuned_again(tuner: Tuner, tmp_path: Path) -> None:
    shapes, rows = tmp_path / "shapes.csv", tmp_path / "rows.csv"
    shapes.write_text("m,n,k\n64,64,64\n128,64,64\n")
    assert run("tune", "--shape", 64, 64, 64, "--results", rows).exit_code == 0
    done = run("tune", "--shapes", shapes, "--results", rows)
    assert done.exit_code == 0, done.output
    assert "1 tuned, 1 already valid, 0 failed" in done.stdout
    assert tuner.asked == ["64x64x64 nn float16", "128x64x64 nn float16"]
    with rows.open(newline="") as file:
        assert [row["m"] for row in csv.DictReader(file)] == ["64", "128"]
    assert run("tune", "--shapes", shapes, "--force").exit_code == 0
    assert len(tuner.asked) == 4


def test_a_key_that_fails_does_not_stop_the_rest(tuner: Tuner, tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,n,k,batch\n64,64,64,2\n128,64,64,1\n")
    tuner.failures = [UnsupportedProblemError("no seed kernel admits it")]
    done = run("tune", "--shapes", shapes, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert [row["m"] for row in found["tuned"]] == ["128"]
    assert found["failed"][0]["reason"] == "no seed kernel admits it"


def test_a_machine_s_failure_is_tried_once_more_and_then_loud(tuner: Tuner) -> None:
    tuner.failures = [InfrastructureError("worker lost")]
    assert run("tune", "--shape", 64, 64, 64).exit_code == 0
    tuner.failures = [InfrastructureError("worker lost"), InfrastructureError("lost again")]
    done = run("tune", "--shape", 32, 32, 32)
    assert done.exit_code == 1
    assert done.stderr.rstrip().endswith("lost again")


def test_wrong_usage_has_status_2(tuner: Tuner) -> None:
    for arguments in (
        ("--shape", 1, 2, 3, "--grid", "cuda-l2"),
        ("--grid", "other"),
        ("--shape", 0, 1, 1),
        ("--shape", 1, 1, 1, "--layout", "xx"),
        ("--shapes", "/missing.csv"),
        (),
    ):
        done = run("tune", *arguments)
        assert done.exit_code == 2, done.output
    assert tuner.asked == []


def test_bench_reports_a_run_of_its_own(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    run("tune", "--shape", 64, 64, 64)

    def confirm(
        chosen: Any, key: GemmKey, bench: Any, *, triton: Any, peers: Any, gap_us: float | None
    ) -> Any:
        timed = seeds.seed_record("sm80/naive", {}, key).outcome.timing
        return timed.model_copy(update={"run_id": "another"})

    monkeypatch.setattr("l2tune.cli.bench.best_triton", lambda key, opened: None)
    monkeypatch.setattr("l2tune.stages.confirm", confirm)
    (row,) = json.loads(run("bench", "--json").stdout)["timed"]
    assert (row["m"], row["run_id"]) == ("64", "another")
    refuted = Refuted(stage="time", check="after", finding=Finding.WRONG_VALUE, detail="went bad")
    monkeypatch.setattr("l2tune.stages.confirm", lambda *_, **__: refuted)
    done = run("bench")
    assert done.exit_code == 1
    assert "went bad" in done.stderr


def test_bench_makes_a_page_and_leaves_out_peers_that_are_wrong(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run("tune", "--shape", 64, 64, 64)

    def confirm(
        chosen: Any, key: GemmKey, bench: Any, *, triton: Any, peers: Any, gap_us: float
    ) -> Any:
        timing = seeds.seed_record("sm80/naive", {}, key).outcome.timing
        baselines = {peer.name: interval(1100.0) for peer in peers}
        server = {"kernel": interval(gap_us), "torch": interval(1300.0)}
        server |= {peer.name: interval(999.0) for peer in peers}
        return timing.model_copy(
            update={"baselines": {**timing.baselines, **baselines}, "server": server}
        )

    def check(worker: Any, key: GemmKey, peer: measure.Peer, *, seed: int) -> str | None:
        return "it returned 7" if peer.symbol == "bad" else None

    monkeypatch.setattr("l2tune.cli.bench.best_triton", lambda key, opened: None)
    monkeypatch.setattr("l2tune.stages.confirm", confirm)
    monkeypatch.setattr(measure, "check_peer", check)
    table, page = tmp_path / "x.csv", tmp_path / "x.html"
    done = run(
        "bench", "--results", table, "--report", page, "--server", "--gap-us", 1250,
        "--peer", "good=them:f", "--peer", "wrong=them:bad",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    with table.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["peer_good_us"], row["peer_wrong_us"]) == ("1100.000", "")
    assert (row["server_us"], row["torch_server_us"]) == ("1250.000", "1300.000")
    assert (row["peer_good_server_us"], row["peer_wrong_server_us"]) == ("999.000", "")
    said = "64x64x64 nn float16: peer_wrong is not compared: it returned 7"
    assert said in done.stderr
    assert said in page.read_text()
    assert "1.040" in page.read_text()  # torch's 1300 over 1250, at random gaps


def test_bench_of_a_shape_without_a_record_fails_in_a_sentence(tuner: Tuner) -> None:
    done = run("bench", "--shape", 8, 8, 8)
    assert done.exit_code == 1
    assert "no record for 8x8x8 nn float16" in done.stderr
