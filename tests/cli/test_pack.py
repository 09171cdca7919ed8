"""`pack` and `tune --from-pack`, without a GPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import seeds
from click.testing import Result
from samples import TOOLS, record
from typer.testing import CliRunner

from l2tune import pipeline, settings
from l2tune.cli import app
from l2tune.spec.gpu import A100, H200, Gpu
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Finding, Refuted
from l2tune.spec.record import Record
from l2tune.store import Artifacts, Pack, Pending, Registry
from l2tune.store.pack import write

KEYS = [GemmKey.dense(64, n, 64, gpu=H200) for n in (64, 128, 256)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of three keys of an H200."""
    made = tmp_path_factory.mktemp("packs") / "pack"
    write(made, H200, map(record, KEYS))
    return made


def test_build_packs_the_records_of_one_gpu(cache_dir: Path, tmp_path: Path) -> None:
    registry, folder = Registry(cache_dir), tmp_path / "out"
    assert "found none" in run("pack", "build", "-o", folder).stderr
    withdrawn = record(KEYS[1], "// withdrawn\n")
    other = record(GemmKey.dense(64, 64, 64, gpu=A100))
    for made in (seeds.hopper(), seeds.split_k(), withdrawn, other):
        registry.put(made)
    registry.quarantine(withdrawn.verified.compiled.source.digest)
    assert "name one with --gpu" in run("pack", "build", "-o", folder).stderr
    done = run("pack", "build", "-o", folder, "--gpu", "nvidia-h200", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["gpu"], found["keys"], found["kernels"]) == (str(H200), 2, 2)
    pack = Pack.read(folder)
    assert {entry.key for entry in pack.entries} == {seeds.hopper().key, seeds.split_k().key}
    assert all(kernel.tunables for kernel in pack.kernels.values())
    assert found["files"] == 2
    assert run("pack", "check", folder).exit_code == 0


def test_check_names_every_fault(folder: Path, cache_dir: Path) -> None:
    (kernel,) = (folder / "kernels").iterdir()
    kernel.write_text(kernel.read_text() + "\n")
    (folder / "kernels" / "notes.txt").write_text("")
    done = run("pack", "check", folder, "--json")
    assert done.exit_code == 1
    said = json.loads(done.stdout)["wrong"]
    assert len(said) == 4
    assert all("does not match its name" in each for each in said[:3])
    assert "notes.txt: no record names it" in said[3]
    (folder / "pack.toml").write_text("")
    assert "schema None" in run("pack", "check", folder).stderr


def test_check_compiles_device_code_and_nothing_else(cache_dir: Path, tmp_path: Path) -> None:
    keys = [GemmKey.dense(n, 64, 64, gpu=H200) for n in (64, 128)]
    host = record(keys[1], "int main() { return 0; }\n")
    write(tmp_path / "p", H200, [seeds.seed_record("sm80/naive", {}, keys[0]), host])
    done = run("pack", "check", tmp_path / "p", "--compile", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["compiled"], found["same_machine_code"]) == (1, 0)
    (said,) = found["wrong"]
    assert "host_code" in said
    assert "128x64x64" in said


def test_what_has_no_compiler_here_is_left_out(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "p", H200, [seeds.triton()])
    monkeypatch.setattr("l2tune.cli.pack.compile.is_available", lambda source: False)
    done = run("pack", "check", tmp_path / "p", "--compile", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["compiled"] == 0
    assert "1 keys are left out" in done.stderr


def test_install_says_which_gpu_it_needs(folder: Path, cache_dir: Path, monkeypatch) -> None:
    monkeypatch.setattr("l2tune.cli.keys.detect", lambda device=0: None)
    done = run("pack", "install", folder)
    assert done.exit_code == 1
    assert "found no GPU 0" in done.stderr
    assert "NVIDIA H200" in done.stderr
    h100 = Gpu(name="NVIDIA H100 80GB HBM3", capability=(9, 0), sms=132)
    monkeypatch.setattr("l2tune.cli.keys.detect", lambda device=0: h100)
    done = run("pack", "install", folder)
    assert done.exit_code == 1
    assert f"`l2tune tune --from-pack {folder}`" in done.stderr
    assert Pending(cache_dir).keys() == []


class NoWorker:
    """Stands in for a worker process."""

    def __init__(self, **_: Any) -> None: ...

    def close(self) -> None: ...


class Recheck:
    """Stands in for the GPU's verdict on a kernel: refuses one, admits the others."""

    def __init__(self, refused: GemmKey) -> None:
        self.asked: list[GemmKey] = []
        self.refused = refused

    def __call__(self, text: str, key: GemmKey, *, bench: pipeline.Bench) -> Record | Refuted:
        self.asked.append(key)
        assert text == record(key).verified.compiled.source.text
        if key == self.refused:
            return Refuted(stage="time", check="load", finding=Finding.WRONG_VALUE, detail="off")
        bench.registry.put(record(key))
        return record(key)


@pytest.fixture
def rechecked(monkeypatch: pytest.MonkeyPatch) -> Recheck:
    made = Recheck(refused=KEYS[0])
    for module in ("keys", "pack"):
        monkeypatch.setattr(f"l2tune.cli.{module}.detect", lambda device=0: H200)
    monkeypatch.setattr("l2tune.stages.Worker", NoWorker)
    monkeypatch.setattr("l2tune.stages.native.build_if_missing", lambda: None)
    monkeypatch.setattr("l2tune.cli.pack.recheck", made)
    monkeypatch.setattr("l2tune.cli.pack.tools", lambda: TOOLS)
    return made


def test_install_goes_on_where_it_was_stopped(
    folder: Path, cache_dir: Path, rechecked: Recheck
) -> None:
    first, *others = sorted(KEYS, key=str)
    found = json.loads(run("pack", "install", folder, "--limit", 1, "--json").stdout)
    assert (len(found["rechecked"]), found["skipped"], found["left"]) == (1, 0, 2)
    assert rechecked.asked == [first]
    assert sorted(Pending(cache_dir).keys(), key=str) == others
    assert [r.key for r in Registry(cache_dir).records()] == [first]
    done = run("pack", "install", folder, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert [len(found[name]) for name in ("rechecked", "refused")] == [1, 1]
    assert (found["skipped"], found["left"]) == (1, 0)
    assert rechecked.asked == [first, *others]
    assert Pending(cache_dir).keys() == []


def test_what_calls_asked_for_is_rechecked(
    folder: Path, cache_dir: Path, rechecked: Recheck
) -> None:
    assert run("pack", "install", folder, "--limit", 0).exit_code == 0
    assert run("pack", "recheck-wanted").exit_code == 0
    assert rechecked.asked == []
    for key in KEYS[:2]:
        Pending(cache_dir).ask(key)
    assert run("pack", "recheck-wanted").exit_code == 0
    assert set(rechecked.asked) == set(KEYS[:2])
    assert [found.key for found in Registry(cache_dir).records()] == [KEYS[1]]
    assert Pending(cache_dir).keys() == [KEYS[2]]


def test_a_damaged_pack_is_not_installed(folder: Path, cache_dir: Path, rechecked: Recheck) -> None:
    (kernel,) = (folder / "kernels").iterdir()
    kernel.write_text(kernel.read_text() + "\n")
    done = run("pack", "install", folder)
    assert done.exit_code == 1
    assert "does not match its name" in done.stderr
    assert (rechecked.asked, Pending(cache_dir).keys()) == ([], [])


def test_tune_from_pack_takes_its_kernels_to_another_gpu(cache_dir: Path, tmp_path: Path) -> None:
    small, hopper = GemmKey.dense(16, 24, 40, gpu=H200), seeds.hopper()
    pack = write(tmp_path / "p", H200, [seeds.seed_record("sm80/naive", {}, small), hopper])
    with settings.override(emulator_budget_s=0.0, emulated_gate_budget_s=0.0):
        done = run("tune", "--gpu", "a100", "--from-pack", tmp_path / "p", "--json")
    assert done.exit_code == 1  # for the key whose kernel an A100 cannot run
    found = json.loads(done.stdout)
    (row,) = found["estimated"]
    on_a100 = small.model_copy(update={"gpu": A100})
    assert (row["key"], row["kernel"]) == (str(on_a100), "sm80/naive")
    (failed,) = found["failed"]
    assert failed["key"] == str(hopper.key.model_copy(update={"gpu": A100}))
    assert "no kernel for it that NVIDIA A100-SXM4-80GB (sm_80) can run" in failed["reason"]
    estimated = Registry(cache_dir).get_estimate(on_a100)
    assert estimated.verified.compiled.source == pack.candidates(on_a100)[0]
    assert Artifacts(cache_dir).get(estimated.verified.compiled.cubins[0]) is not None
    assert list(Registry(cache_dir).records()) == []
