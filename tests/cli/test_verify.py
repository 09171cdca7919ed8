"""`verify` on a machine without a GPU: the whole gate, on the emulator."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import samples
import seeds
from click.testing import Result
from typer.testing import CliRunner

from l2tune import generate, settings
from l2tune.cli import app
from l2tune.export import export

pytestmark = pytest.mark.usefixtures("cache_dir", "no_gpu")
NARROW = ("--layout", "nn", "--dtype", "float16")
EXPLOITS = Path(__file__).resolve().parents[1] / "exploits"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("verify", "keys"):
        monkeypatch.setattr(f"l2tune.cli.{module}.detect", lambda device=0: None)


def verify(path: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["verify", str(path), *map(str, arguments)])


def write(folder: Path, text: str, name: str = "x.cu") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def little_time() -> Iterator[None]:
    """Each check of the gate tries its first case."""
    with settings.override(emulator_budget_s=0.0, emulated_gate_budget_s=0.0):
        yield


def test_a_file_is_verified_for_each_target(tmp_path: Path) -> None:
    path = write(tmp_path, generate.seed_text("sm80/tiled"))
    done = verify(path, "--shape", 16, 16, 16, *NARROW, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["verdicts"]
    assert {verdict["arch"] for verdict in found} == {"sm_80", "sm_90a"}
    assert {verdict["verdict"] for verdict in found} == {"verified"}
    assert {verdict["processor"] for verdict in found} == {"emulator"}
    assert found[0]["resources"]["gemm"]["spill_bytes"] == 0
    for verdict in found:
        checks = {check["check"]: check["examples"] for check in verdict["checks"]}
        assert {"emulator", "smoke", "integers", "values", "nonfinite"} <= checks.keys()
        assert checks["integers"]


def test_hypothesis_refutes_on_the_emulator_and_the_smallest_case_is_shown() -> None:
    with settings.override(emulated_gate_budget_s=30.0):
        done = verify(EXPLOITS / "k_mod_128.cu", *NARROW, "--shape", 64, 64, 128, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)["verdicts"]
    assert len(found) == 2
    for verdict in found:
        assert verdict["stage"] != "emulator", verdict
        assert {verdict["case"][name] for name in ("m", "n")} == {1}, verdict
        assert verdict["case"]["k"] % 128 == 64


def test_the_emulator_refutes_a_race() -> None:
    done = verify(EXPLOITS / "shared_race.cu", *NARROW, "--json")
    assert done.exit_code == 1
    for verdict in json.loads(done.stdout)["verdicts"]:
        assert verdict["stage"] == "emulator"
        assert verdict["finding"] == "shared_race"


def test_what_the_emulator_does_not_know_does_not_fail_the_file(tmp_path: Path) -> None:
    body = (
        'extern "C" __global__ void gemm(short* c, int m) {\n'
        '  asm volatile("vset4.u32.u32.ne %0, %0, %0, %0;" : "+r"(m));\n  c[0] = m;\n}\n'
    )
    done = verify(write(tmp_path, samples.cuda_file(body=body)), *NARROW)
    assert done.exit_code == 0, done.output
    assert "not emulated: PTX line" in done.stdout


def test_open_tunables_are_settled_and_told(tmp_path: Path) -> None:
    path = write(tmp_path, generate.seed_text("sm90a/wgmma_persistent"))
    narrow = ("--shape", 64, 128, 64, "--layout", "nt", "--dtype", "float16")
    done = verify(path, "--set", "TILE_N=64", "--set", "CLUSTER=2", *narrow)
    assert done.exit_code == 0, done.output
    assert "TILE_N=64" in done.stdout
    assert "CLUSTER=2" in done.stdout
    refused = verify(path, "--set", "TILE_N=65", *narrow)
    assert refused.exit_code == 1
    assert "TILE_N=65 is not allowed" in refused.stderr


def test_an_exported_file_is_judged_by_the_kernel_in_it(tmp_path: Path) -> None:
    path = write(tmp_path, export(seeds.hopper(cluster=1)))
    done = verify(path, "--shape", 64, 128, 64, "--layout", "tn", "--dtype", "float16")
    assert done.exit_code == 0, done.output
    assert "an exported file" in done.stdout
    assert "the gate ran on the emulator" in done.stdout
    assert "nothing was timed" in done.stdout


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('extern "C" __global__ void gemm(short* c, int m) { this is not CUDA }', "compile/"),
        ('int main() { return 0; }\nextern "C" __global__ void gemm(short* c, int m) {}', "host_"),
        (
            "__device__ int calls;\n"
            'extern "C" __global__ void gemm(short* c, int m) { c[0] = calls++; }',
            "writable_global",
        ),
    ],
)
def test_a_kernel_that_fails_a_stage_is_refuted_with_status_1(
    tmp_path: Path, body: str, said: str
) -> None:
    path = write(tmp_path, samples.cuda_file(body=body))
    done = verify(path, "--layout", "nn", "--dtype", "float16")
    assert done.exit_code == 1
    assert "refuted" in done.stdout
    assert said in done.stdout


def test_a_contract_that_does_not_parse_is_one_sentence(tmp_path: Path) -> None:
    done = verify(write(tmp_path, samples.cuda_file(samples.CONTRACT + "colour = 1\n")))
    assert done.exit_code == 1
    assert "unknown key 'colour'" in done.stderr
    assert "Traceback" not in done.output


def test_a_shape_that_nothing_admits_is_said(tmp_path: Path) -> None:
    contract = samples.CONTRACT + 'requires = ["m % 8 == 0"]\n'
    done = verify(write(tmp_path, samples.cuda_file(contract)), "--shape", 7, 8, 8)
    assert done.exit_code == 1
    assert "no instance admits 7x8x8" in done.stderr


@pytest.mark.parametrize("arguments", [("missing.cu",), ("tests", "--set", "X")])
def test_a_file_that_is_not_there_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert verify(Path(arguments[0]), *arguments[1:]).exit_code == 2
