"""The whole gate where there is no GPU: every check runs on the emulator, in a worker."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import exploit_files
import pytest
import seeds

from l2tune import generate, pipeline, settings, stages, verify
from l2tune.errors import InfrastructureError
from l2tune.runtime.worker import NO_GPU, Worker
from l2tune.spec.gpu import H200
from l2tune.spec.kernel import instantiate
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Finding, Refuted, Verified
from l2tune.verify.case import Case
from l2tune.verify.checks import CHECKS
from l2tune.verify.emulated import EmulatedBench, emulate_here, emulated_cases
from l2tune.verify.plan import Plan
from l2tune.verify.relations import metamorphic
from l2tune.verify.repetition import LONG_SUM, run_again
from l2tune.verify.trial import KernelFailed

NAMES = [name for _, name, _ in CHECKS]
SMALL = GemmKey.dense(17, 8, 24, gpu=H200)
HONEST, HOPPER = (exploit_files.text_of(f"honest_{name}") for name in ("tiled", "hopper"))
_SEED = 1


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(device=NO_GPU, spares=0) as opened:
        yield opened


def build(text: str, key: GemmKey, cache: Path) -> Compiled:
    built = stages.build(stages.source_for(text, key), key, pipeline.Bench(None, cache))
    assert isinstance(built, Compiled), built
    return built


def gate(
    worker: Worker, text: str, key: GemmKey, cache: Path, *checks: str, budget_s: float = 60.0
) -> Verified | Refuted:
    built = build(text, key, cache)
    with settings.override(emulated_gate_budget_s=budget_s):
        return verify.verify(worker, built, key, cache_dir=cache, seed=_SEED, checks=checks or None)


def test_an_honest_kernel_is_proven_by_every_check_within_the_time(worker, tmp_path):
    outcome = gate(worker, HONEST, SMALL, tmp_path, budget_s=0.5)
    assert isinstance(outcome, Verified), outcome
    assert [check.check for check in outcome.checks] == NAMES
    assert all(check.examples for check in outcome.checks if check.check != "dependent_launch")
    drawn = [check for check in outcome.checks if check.check in ("values", "nonfinite")]
    assert {check.note for check in drawn} == {"no time for all of its cases"}
    assert {check.examples for check in drawn} == {1}


def test_a_key_that_is_too_large_is_scaled_down_and_the_note_says_so(worker, tmp_path):
    key = GemmKey.dense(4096, 4096, 4096, gpu=H200)
    outcome = gate(worker, HOPPER, key, tmp_path, "smoke", "repeat")
    assert isinstance(outcome, Verified), outcome
    smoke, repeat = outcome.checks
    assert smoke.note.startswith("scaled down to ")
    assert repeat.note == ""
    assert repeat.examples == 3 * 3  # three problems, in three orders of the warps


EXPLOITS = [
    # name, stage, check, finding, what is left of the case
    ("shared_race", "sandbox", "smoke", "shared_race", {"m": 1, "n": 1, "k": 1}),
    ("early_dependent", "repeat", "dependent_launch", "ignores_dependency", {"m": 1, "k": 1}),
    ("detects_values", "properties", "values", "wrong_value", {"m": 1, "n": 1, "k": 1}),
    ("nan_max", "properties", "nonfinite", "wrong_nonfinite", {"m": 1, "n": 1}),
    ("half_accumulation", "properties", "accumulator", "half_accumulation", {"m": 1, "n": 1}),
    ("half_output", "sandbox", "rerun", "uninitialised", {"m": 1, "n": 1, "k": 1}),
    ("nondeterministic", "repeat", "repeat", "not_reproducible", {"values": "cancelling"}),
]


@pytest.mark.parametrize(("name", "stage", "check", "finding", "case"), EXPLOITS)
def test_an_exploit_is_refuted_with_a_small_case(
    name, stage, check, finding, case, worker, tmp_path
):
    key = exploit_files.key_of(name, H200)
    outcome = gate(worker, exploit_files.text_of(name), key, tmp_path, check)
    assert isinstance(outcome, Refuted), outcome
    assert (outcome.stage, outcome.check, outcome.finding) == (stage, check, finding), outcome
    assert case.items() <= outcome.case.items()


def test_a_fault_that_only_a_drawn_case_shows_is_shrunk(worker, tmp_path):
    lost = HOPPER.replace("item * b_batched", "item")  # wrong only where batches share b
    outcome = gate(worker, lost, SMALL, tmp_path, "magnitudes")
    assert isinstance(outcome, Refuted), outcome
    assert outcome.finding is Finding.WRONG_VALUE
    assert "b" in outcome.case["shared"]
    assert (outcome.case["m"], outcome.case["batch"]) == (1, 2)


def test_a_product_that_is_lost_beside_a_zero_breaks_the_sum_of_the_halves(tmp_path):
    lossy = HONEST.replace(
        "sum += sa[y][i] * sb[i][x];",
        "sum += sa[y][i] * (i && sa[y][i - 1] == 0.f && k0 + i == k / 2 ? 0.f : sb[i][x]);",
    )
    bench = EmulatedBench.open(build(lossy, SMALL, tmp_path), SMALL, tmp_path)
    plan = Plan(Case(17, 8, 24), seed=_SEED, max_examples=0)
    with pytest.raises(KernelFailed, match="the halves of the sum over k"):
        metamorphic(bench, plan)


LONG = GemmKey.dense(16, 24, 1024, gpu=H200, acc="float16")


def half_sums(old: str = "", new: str = "") -> str:
    """An instance of the seed that sums in float16, with some of its text replaced."""
    text = instantiate(generate.seed_text("sm90a/wgmma_half"), seeds.WGMMA_HALF)
    if old:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_sums_in_float16_are_proven_where_they_are_declared(worker, tmp_path):
    checks = ("smoke", "magnitudes", "accumulator", "values", "key_values", "metamorphic")
    outcome = gate(worker, half_sums(), LONG, tmp_path, *checks, budget_s=0.5)
    assert isinstance(outcome, Verified), outcome
    examples = {check.check: check.examples for check in outcome.checks}
    assert examples.pop("accumulator") == 0  # it looks for what is declared here
    assert all(examples.values())


@pytest.mark.parametrize("check", ["key_values", "metamorphic"])
def test_a_tail_that_a_float16_sum_loses_is_seen_however_long_it_is(check, worker, tmp_path):
    lossy = half_sums("steps_k = (k - 1) / TILE_K + 1;", "steps_k = (k + 63) / 64 - (k > 512);")
    outcome = gate(worker, lossy, LONG, tmp_path, check)
    assert isinstance(outcome, Refuted), outcome
    assert outcome.finding is Finding.WRONG_VALUE


def test_sums_in_float16_that_are_not_declared_are_refused(worker, tmp_path):
    undeclared = half_sums('acc      = "f16"', 'acc      = "f32"')
    key = LONG.model_copy(update={"acc": "float32"})
    outcome = gate(worker, undeclared, key, tmp_path, "accumulator")
    assert isinstance(outcome, Refuted), outcome
    assert outcome.finding is Finding.HALF_ACCUMULATION


def test_the_proof_of_a_kernel_and_that_of_a_key_are_all_the_checks(worker, tmp_path):
    assert {*verify.KERNEL_CHECKS, *verify.KEY_CHECKS} == set(NAMES)
    assert not set(verify.KERNEL_CHECKS) & set(verify.KEY_CHECKS)
    outcome = gate(worker, HOPPER, SMALL, tmp_path, *verify.KEY_CHECKS)
    assert isinstance(outcome, Verified), outcome
    assert tuple(check.check for check in outcome.checks) == verify.KEY_CHECKS


def test_a_contract_without_small_problems_is_no_fault_of_the_kernel(worker, tmp_path):
    text = HONEST.replace("requires = [", 'requires = ["m >= 4096", ')
    key = GemmKey.dense(4096, 4096, 4096, gpu=H200)
    with pytest.raises(InfrastructureError, match="admits no problem near 4096 x 4096 x 4096"):
        gate(worker, text, key, tmp_path)
    passed = emulate_here((build(text, key, tmp_path), key, tmp_path, _SEED, 1.0))
    assert passed.examples == 0
    assert passed.note.startswith("not emulated: ")


def opened(name: str, cache: Path) -> tuple[EmulatedBench, GemmKey]:
    key = exploit_files.key_of(name, H200)
    compiled = build(exploit_files.text_of(name), key, cache)
    return EmulatedBench.open(compiled, key, cache), key


@pytest.mark.parametrize("seed", [0, 100, 200])
def test_stage_4_sees_a_weighed_neighbour_whatever_the_seed(seed, tmp_path):
    bench, key = opened("zero_times_neighbour", tmp_path)
    drawn = emulated_cases(bench.source, key, bench.gpu, seed=seed)
    larger, smaller = (case for case in drawn if case.values == "nonfinite")
    assert larger.seed != smaller.seed
    with pytest.raises(KernelFailed) as caught:
        bench.attempt(smaller)
    assert caught.value.finding is Finding.WRONG_NONFINITE


@pytest.mark.parametrize("seed", [0, 100])
def test_an_order_of_additions_shows_whatever_the_seed(seed, tmp_path):
    bench, _ = opened("nondeterministic", tmp_path)
    with pytest.raises(KernelFailed, match="differs from run 1"):
        run_again(bench, dataclasses.replace(LONG_SUM, seed=seed), runs=3)
    assert bench.processor.seed is None
