"""What a candidate meets before it may touch a GPU, on a machine that has none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import TOOLS

from l2tune import pipeline, steps
from l2tune.errors import InfrastructureError
from l2tune.runtime.worker import NO_GPU, Worker
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, CompileFailed, Finding, Refuted, Verified
from l2tune.stages import build, source_for
from l2tune.store import Chosen

EXPLOITS = Path(__file__).parent / "exploits"
KEY = GemmKey.dense(64, 64, 64, gpu=H200)


class NeverCalled:
    """Stands where the GPU's worker is; a launch would be an AttributeError."""


@pytest.fixture
def bench(cache_dir: Path) -> Iterator[pipeline.Bench]:
    with Worker(device=NO_GPU, spares=0) as emulator:
        yield pipeline.Bench(NeverCalled(), cache_dir, emulators=[emulator])


def _exploit(name: str) -> str:
    return (EXPLOITS / f"{name}.cu").read_text()


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("fault", Finding.OUT_OF_BOUNDS),
        ("shared_race", Finding.SHARED_RACE),
        ("write_past_end", Finding.OUT_OF_BOUNDS),
    ],
)
def test_what_would_ruin_a_gpu_is_refused_before_any_launch(name, finding, bench):
    outcome = pipeline.evaluate(_exploit(name), KEY, bench=bench)
    assert isinstance(outcome, Refuted)
    assert outcome.stage == "emulator"
    assert outcome.finding is finding


def test_a_kernel_that_never_ends_is_refused_before_any_launch(bench):
    key = GemmKey.dense(16, 16, 1, gpu=H200)
    outcome = pipeline.evaluate(_exploit("hang"), key, bench=bench)
    assert isinstance(outcome, Refuted)
    assert (outcome.stage, outcome.finding) == ("emulator", Finding.HANG)


def test_a_refusal_is_remembered_and_not_tried_again(bench):
    first = pipeline.evaluate(_exploit("shared_race"), KEY, bench=bench)
    bench.emulators[0].close()
    assert pipeline.evaluate(_exploit("shared_race"), KEY, bench=bench) == first


def test_each_stage_before_the_emulator_answers_as_data(bench):
    header, _, body = _exploit("zeros_mended").partition("---*/")
    broken = header + "---*/" + body.replace("float", "flaot")
    assert isinstance(pipeline.evaluate(broken, KEY, bench=bench), CompileFailed)
    for text, stage in (
        ("no contract", "contract"),
        (_exploit("host_code"), "screen"),
        (_exploit("device_counter"), "compile"),
    ):
        outcome = pipeline.evaluate(text, KEY, bench=bench)
        assert isinstance(outcome, Refuted)
        assert outcome.stage == stage


def test_a_carried_choice_is_compiled_again_and_only_to_what_was_proven(bench, tmp_path):
    compiled = build(source_for(_exploit("zeros_mended"), KEY), KEY, bench)
    assert isinstance(compiled, Compiled)
    verified = Verified(key=KEY, compiled=compiled, checks=())
    elsewhere = pipeline.Bench(NeverCalled(), tmp_path / "elsewhere")
    steps.restore(Chosen(verified=verified, triton=None, tools=TOOLS), bench=elsewhere)
    assert all(elsewhere.artifacts.get(cubin) for cubin in compiled.cubins)
    other = compiled.model_copy(update={"cubins": ("0" * 64,)})
    changed = Chosen(verified=verified, triton=other, tools=TOOLS)
    with pytest.raises(InfrastructureError, match="does not compile to what was proven"):
        steps.restore(changed, bench=elsewhere)
