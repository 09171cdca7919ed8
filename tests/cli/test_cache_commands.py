"""`show`, `export`, `doctor` and `bench` on a cache of made records."""

import dataclasses
import json
from pathlib import Path

import pytest
import seeds
from click.testing import Result
from typer.testing import CliRunner

from l2tune import settings
from l2tune.cli import app
from l2tune.dispatch import native
from l2tune.export import parse_export
from l2tune.spec.outcome import CompileFailed, Finding, Refuted
from l2tune.store import Pending, Registry


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def registry(cache_dir: Path) -> Registry:
    """Of a cache with two records, of two products."""
    made = Registry(cache_dir)
    made.put(seeds.hopper())
    made.put(seeds.split_k())
    return made


def test_show_lists_every_record(registry: Registry) -> None:
    done = run("show")
    assert done.exit_code == 0, done.output
    assert "sm90a/wgmma_persistent" in done.stdout
    assert "512x64x16384 x2 nt bfloat16" in done.stdout
    found = json.loads(run("show", "--json").stdout)
    assert {row["kernel"].partition("[")[0] for row in found} == {
        "sm90a/wgmma_persistent",
        "sm80/mma_multistage",
    }


def test_show_of_one_product_says_all_of_it(registry: Registry) -> None:
    done = run("show", "512x768x512")
    assert "smoke 2 (0.25)" in done.stdout
    assert "mma_multistage" not in done.stdout
    (whole,) = json.loads(run("show", str(seeds.hopper().key), "--json").stdout)
    assert whole == seeds.hopper().model_dump(mode="json")


def test_show_of_an_empty_cache_says_what_fills_it(cache_dir: Path) -> None:
    done = run("show")
    assert done.exit_code == 0
    assert "l2tune tune" in done.stdout


def test_show_of_something_else_is_wrong_usage(cache_dir: Path) -> None:
    done = run("show", "4096")
    assert done.exit_code == 2
    assert "needed a key" in done.output


def test_show_refused_tells_the_verdicts(registry: Registry) -> None:
    key = seeds.hopper().key
    refuted = Refuted(stage="properties", check="values", finding=Finding.WRONG_VALUE, detail="off")
    registry.remember_refusal(key, "1" * 64, refuted)
    registry.remember_refusal(key, "2" * 64, CompileFailed(kind="error", log="no\n  such"))
    done = run("show", "--refused")
    assert "wrong_value" in done.stdout
    assert "no such" in done.stdout
    found = json.loads(run("show", "--refused", "--json", key).stdout)
    assert {entry["digest"][0]: entry["finding"] for entry in found} == {
        "1": "wrong_value",
        "2": "error",
    }


def test_show_wanted_lists_what_calls_missed(registry: Registry) -> None:
    registry.miss(seeds.naive().key, count=7)
    registry.miss(seeds.triton().key, nearest="triton/other")
    assert "100x99x98 x3 tt" in run("show", "--wanted").stdout
    assert json.loads(run("show", "--wanted", "--json").stdout) == [
        {"key": str(seeds.naive().key), "calls": 7, "served_by": "torch.matmul"},
        {"key": str(seeds.triton().key), "calls": 1, "served_by": "triton/other"},
    ]
    findings = json.loads(run("doctor", "--json").stdout)["findings"]
    (missed,) = (f["found"] for f in findings if f["what"] == "products not found")
    assert missed == "2, of which 1 served by a kernel tuned for another"


def test_show_and_doctor_count_what_waits_for_its_recheck(registry: Registry, cache_dir: Path):
    def doctor() -> dict[str, str]:
        found = json.loads(run("doctor", "--json").stdout)["findings"]
        return next(one for one in found if one["what"] == "keys of packs that wait")

    assert "wait" not in run("show").stdout
    assert doctor()["found"] == "0"
    assert not (cache_dir / "packs").exists()
    for made in (seeds.naive(), seeds.hopper()):
        Pending(cache_dir).put(made.key, made.verified.compiled.source.text)
    assert "2 keys of packs wait" in run("show").stdout
    assert "1 keys of packs wait" in run("show", "512x768x512").stdout
    assert isinstance(json.loads(run("show", "--json").stdout), list)
    assert (doctor()["state"], doctor()["found"]) == ("note", "2")
    (database,) = (cache_dir / "packs").glob("*.db")
    database.write_bytes(b"x" * 4096)
    assert (doctor()["state"], doctor()["found"]) == ("broken", "damaged")


def test_export_writes_a_file_and_its_description(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = run("export", "--shape", 512, 768, 512, "-o", folder, "--json")
    assert done.exit_code == 0, done.output
    (entry,) = json.loads(done.stdout)
    file = Path(entry["file"])
    record = seeds.hopper()
    assert parse_export(file.read_text()) == record.outcome.timing.verified.compiled.source
    assert json.loads(file.with_suffix(".json").read_text())["key"] == str(record.key)
    assert len(list(folder.iterdir())) == 2


def test_export_of_all_writes_all(registry: Registry, tmp_path: Path) -> None:
    assert run("export", "-o", tmp_path / "out").exit_code == 0
    assert len(list((tmp_path / "out").glob("*.cu"))) == 2


def test_export_of_what_is_not_there_fails_in_a_sentence(cache_dir: Path) -> None:
    done = run("export", "--shape", 1, 2, 3)
    assert done.exit_code == 1
    assert "the cache holds no kernel for 1x2x3" in done.stderr
    assert "Traceback" not in done.output


def test_an_export_to_where_nothing_can_be_written_fails_in_a_sentence(
    registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = run("export", "-o", tmp_path / "file" / "out")
    assert done.exit_code == 1
    assert "cannot make" in done.stderr


def test_doctor_is_content_with_a_machine_that_can_compile(cache_dir: Path) -> None:
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0, found
    states = {finding["what"]: finding["state"] for finding in found["findings"]}
    assert states["compiling sm80/naive"] == "ok"
    assert states["cache directory"] == "ok"


def test_doctor_names_a_cache_that_others_can_write(cache_dir: Path) -> None:
    cache_dir.chmod(0o777)
    done = run("doctor")
    assert done.exit_code == 1
    assert "chmod 700" in done.stdout


def test_doctor_finds_records_whose_cubins_are_gone(registry: Registry) -> None:
    done = run("doctor", "--json")
    found = {one["what"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 1
    assert found["records"]["found"] == "2 readable"
    assert found["cubins"]["found"] == "2 records lack theirs"


def test_doctor_builds_the_native_path_and_says_so(
    cache_dir: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state(*arguments: str) -> str:
        found = json.loads(run("doctor", "--json", *arguments).stdout)["findings"]
        return next(one["found"] for one in found if one["what"] == "native path")

    compiler = tmp_path_factory.mktemp("compiler") / "cxx"
    compiler.write_text("#!/bin/sh\necho no header; exit 1")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(native, "loaded", None)
    wanted = dataclasses.replace(settings.current(), native="auto")
    monkeypatch.setattr(settings, "_current", wanted)
    assert state() == "not built"
    failed = run("doctor", "--build")
    assert failed.exit_code == 1
    assert "no header" in failed.stderr
    assert state().startswith("the build failed")
    compiler.write_text('#!/bin/sh\nfor made; do :; done; echo x > "$made"')
    assert run("doctor", "--build").exit_code == 0
    assert state().startswith("built: ")


def test_a_variable_that_does_not_parse_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from l2tune import settings

    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.setenv("L2TUNE_MAX_EXAMPLES", "many")
    done = run("show")
    assert done.exit_code == 1
    assert "L2TUNE_MAX_EXAMPLES: found 'many'" in done.stderr
