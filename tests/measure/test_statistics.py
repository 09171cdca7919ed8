import numpy as np
import pytest

from l2tune.measure.statistics import (
    choose_and_report,
    fastest,
    interval,
    paired_differences,
)


def skewed(rng: np.random.Generator, size: int) -> list[float]:
    return list(10.0 + rng.exponential(1.0, size))  # as timings: a floor and a long tail


def test_the_interval_covers_the_true_median_about_95_times_in_100():
    rng, true_median = np.random.default_rng(7), 10.0 + np.log(2.0)
    trials = [interval(skewed(rng, 30)) for _ in range(400)]
    covered = sum(found.lo <= true_median <= found.hi for found in trials) / len(trials)
    assert 0.91 <= covered <= 0.99, f"covered {covered:.3f}"


def test_the_same_samples_give_the_same_interval():
    samples = skewed(np.random.default_rng(1), 15)
    assert interval(samples) == interval(list(samples))


def test_the_median_lies_in_its_interval_even_for_one_sample():
    for samples in ([3.0], [3.0, 5.0], [1.0, 1.0, 9.0]):
        found = interval(samples)
        assert found.lo <= found.us <= found.hi, f"{found} of {samples}"


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="found no sample"):
        interval([])


def test_a_drifting_clock_cancels_in_paired_differences():
    drift = np.linspace(1.0, 1.4, 20)
    pairs, spacers = list(5.0 * drift), list(2.0 * drift)
    found = interval(paired_differences(pairs, spacers))
    assert found.lo >= 3.0 * 1.0
    assert found.hi <= 3.0 * 1.4
    assert found.us == pytest.approx(3.0 * 1.2, rel=0.02)


def test_unpaired_samples_are_refused():
    with pytest.raises(ValueError, match="2 pairs and 1 spacers"):
        paired_differences([1.0, 2.0], [1.0])


def test_the_chosen_variant_is_reported_by_samples_it_was_not_chosen_on():
    lucky_on_even = [1.0, 9.0] * 10
    steady = [5.0, 5.0] * 10
    name, found = choose_and_report({"lucky": lucky_on_even, "steady": steady})
    assert (name, found.us) == ("lucky", 9.0)


def test_choosing_among_equal_variants_is_not_biased_low():
    rng = np.random.default_rng(3)
    reported = []
    for _ in range(200):
        variants = {str(i): list(rng.normal(100.0, 5.0, 30)) for i in range(5)}
        reported.append(choose_and_report(variants)[1].us)
    assert abs(np.mean(reported) - 100.0) < 0.5, f"mean {np.mean(reported):.2f}"


def test_refused_candidates_are_never_among_the_fastest():
    assert fastest([3.0, float("inf"), 1.0], 3) == [2, 0]
