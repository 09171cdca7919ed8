from l2tune.measure.host import call_count
from l2tune.measure.rounds import MAX_ROUNDS, MIN_ROUNDS, enough_rounds
from l2tune.measure.run import candidate_position
from l2tune.measure.verdict import too_fast
from l2tune.spec.geometry import overlaps_predecessor
from l2tune.spec.gpu import H200
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Finding, Interval, LaunchData
from l2tune.spec.roofline import physical_minimum_us

FILE = """/*---l2tune
id       = "test/kernel"
arch     = ["sm_90a"]
dtype    = ["f16"]
layout   = ["nn"]
workspace = "{workspace}"
workspace_zeroed = {zeroed}
[[launch]]
kernel   = "first"
grid     = ["{first_grid}", "1", "1"]
pdl      = {first_pdl}
args     = ["a", "b", "c"]
[[launch]]
kernel   = "second"
grid     = ["m", "1", "1"]
pdl      = {second_pdl}
args     = ["a", "b", "c"]
---*/
"""


def overlaps(*, first_grid=1, first_pdl="false", second_pdl="true", workspace=0, zeroed="false"):
    text = FILE.format(
        first_grid=first_grid, first_pdl=first_pdl, second_pdl=second_pdl,
        workspace=workspace, zeroed=zeroed,
    )  # fmt: skip
    launches = (LaunchData(kernel="first"), LaunchData(kernel="second"))
    compiled = Compiled(
        source=KernelSource(text=text, arch="sm_90a"), cubins=("0",), launches=launches,
        resources={}, compiler="none",
    )  # fmt: skip
    return overlaps_predecessor(compiled, GemmKey(m=8, n=8, k=8, gpu=H200).problem(), H200)


def test_only_the_first_launch_can_overlap_the_predecessor():
    assert not overlaps(first_pdl="false", second_pdl="true")
    assert overlaps(first_pdl="true", second_pdl="false")


def test_a_skipped_launch_is_not_the_first():
    assert overlaps(first_grid=0, first_pdl="false", second_pdl="true")


def test_clearing_scratch_memory_keeps_a_kernel_from_overlapping():
    assert not overlaps(first_pdl="true", workspace=1024, zeroed="true")
    assert overlaps(first_pdl="true", workspace=0, zeroed="true")


def test_rounds_end_at_the_budget_once_there_are_enough():
    assert not enough_rounds(MIN_ROUNDS - 1, elapsed_s=1.1, budget_s=1.0)
    assert enough_rounds(MIN_ROUNDS, elapsed_s=1.1, budget_s=1.0)
    assert not enough_rounds(MIN_ROUNDS, elapsed_s=0.9, budget_s=1.0)


def test_rounds_end_at_the_most_even_with_time_left():
    assert enough_rounds(MAX_ROUNDS, elapsed_s=0.0, budget_s=100.0)


def test_a_very_slow_contestant_ends_the_rounds_early():
    assert enough_rounds(6, elapsed_s=3.5, budget_s=1.0)
    assert not enough_rounds(5, elapsed_s=100.0, budget_s=1.0)


def test_slow_products_are_called_less_often():
    assert [call_count(us) for us in (5.0, 2000.0, 20000.0)] == [250, 60, 20]


def test_baselines_are_told_from_candidates():
    assert candidate_position("candidate 12") == 12
    assert candidate_position("torch") is None


def test_an_injected_microsecond_for_a_4096_cube_is_refused_as_impossible():
    minimum_us = physical_minimum_us(GemmKey(m=4096, n=4096, k=4096, gpu=H200))
    refuted = too_fast(Interval(us=1.0, lo=1.0, hi=1.0), minimum_us=minimum_us)
    assert refuted is not None
    assert refuted.finding is Finding.IMPOSSIBLE_TIME
    assert too_fast(Interval(us=180.0, lo=179.0, hi=181.0), minimum_us=minimum_us) is None
