"""`emulate`: a kernel runs without a GPU, and what is wrong is said where it stands in the file."""

import json
from pathlib import Path

import pytest
import samples
import seeds
from click.testing import Result
from typer.testing import CliRunner

from l2tune.cli import app
from l2tune.export import export

ROOT = Path(__file__).resolve().parents[2]
EXPLOITS = ROOT / "tests/exploits"
TILED = ROOT / "kernels_seed/sm80/tiled.cu"

pytestmark = pytest.mark.usefixtures("cache_dir")


def emulate(path: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["emulate", str(path), *map(str, arguments)])


def line_of(path: Path, words: str) -> int:
    return next(n for n, line in enumerate(path.read_text().split("\n"), 1) if words in line)


def test_a_seed_passes_and_shows_its_mix_and_its_accesses() -> None:
    done = emulate(TILED, "--shape", 20, 18, 17, "--layout", "tn", "--dtype", "bfloat16")
    assert done.exit_code == 0, done.output
    assert "no finding; integers at 20x18x17" in done.stdout
    assert "bar.sync" in done.stdout
    assert "ld.shared" in done.stdout
    assert "tiled.cu:" in done.stdout


def test_a_race_is_reported_at_its_line_with_status_1() -> None:
    path = EXPLOITS / "shared_race.cu"
    done = emulate(path, "--shape", 32, 32, 32)
    assert done.exit_code == 1
    lines = range(line_of(path, "sa[r][x] ="), line_of(path, "sum += sa") + 1)
    place, _, rest = done.stdout.removeprefix(f"{path}:").partition(":")
    assert int(place) in lines, done.stdout
    assert rest.startswith(" shared_race: byte ")
    assert "is not ordered after the" in rest
    assert "block (0, 0, 0), thread" in rest


def test_a_fault_in_a_tuned_kernel_is_mapped_back_through_headers_and_tunables(
    tmp_path: Path,
) -> None:
    text = (ROOT / "kernels_seed/sm80/mma_multistage.cu").read_text()
    body, brace, rest = text.partition("gemm(")[2].partition("{\n")
    path = tmp_path / "trap.cu"
    path.write_text(text.replace(body + brace + rest, f"{body}{{\n  if (m > 9) __trap();\n{rest}"))
    done = emulate(path, "--shape", 16, 64, 64)
    assert done.exit_code == 1
    assert f"{path}:{line_of(path, '__trap')}: trap: " in done.stdout
    assert "|   if (m > 9) __trap();" in done.stdout


def test_json_has_the_finding_and_nothing_else_on_standard_output() -> None:
    done = emulate(EXPLOITS / "write_past_end.cu", "--shape", 33, 65, 32, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["verdict"] == "refuted"
    assert found["finding"]["fault"] == "out_of_bounds"
    assert found["finding"]["source"]["file"].endswith("write_past_end.cu")
    assert found["case"] == {"m": 33, "n": 65, "k": 32}


def test_json_orders_accesses_by_their_needless_traffic() -> None:
    done = emulate(TILED, "--shape", 16, 16, 16, "--json")
    (launch,) = json.loads(done.stdout)["launches"]
    ratios = [access["ratio"] for access in launch["accesses"]]
    assert ratios
    assert ratios == sorted(ratios, reverse=True)
    assert launch["mix"]["ret"] == 8


def test_a_wrong_result_is_a_finding_too() -> None:
    done = emulate(EXPLOITS / "zeros.cu", "--shape", 16, 16, 16)
    assert done.exit_code == 1
    assert "zeros.cu: wrong_value: " in done.stdout


def test_a_file_that_does_not_compile_is_refuted_with_the_compilers_words(tmp_path: Path) -> None:
    path = tmp_path / "x.cu"
    path.write_text(samples.cuda_file(body='extern "C" __global__ void gemm(short* c, int) { x }'))
    done = emulate(path, "--shape", 16, 16, 16)
    assert done.exit_code == 1
    assert 'identifier "x" is undefined' in done.stdout


def test_an_exported_file_is_named_by_lines_of_its_ptx(tmp_path: Path) -> None:
    path = tmp_path / "x.cu"
    path.write_text(export(seeds.naive()))
    done = emulate(path, "--shape", 9, 8, 7, "--layout", "tt")
    assert done.exit_code == 0, done.output
    assert "ptx:" in done.stdout


def test_an_instruction_that_is_not_known_is_named(tmp_path: Path) -> None:
    body = (
        'extern "C" __global__ void gemm(short* c, int m) {\n'
        '  asm volatile("vset4.u32.u32.ne %0, %0, %0, %0;" : "+r"(m));\n  c[0] = m;\n}\n'
    )
    path = tmp_path / "x.cu"
    path.write_text(samples.cuda_file(body=body))
    done = emulate(path, "--shape", 16, 16, 16)
    assert done.exit_code == 1
    assert "not emulated: PTX line" in done.stderr
    assert "vset4" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(("--values", "odd"), 2), (("--set", "X"), 2), (("--arch", "sm_70"), 1), (("--batch", 0), 2)],
)
def test_options_that_the_file_cannot_have_are_refused(
    arguments: tuple[object, ...], status: int
) -> None:
    assert emulate(TILED, "--shape", 16, 16, 16, *arguments).exit_code == status
