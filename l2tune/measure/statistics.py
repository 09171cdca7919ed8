"""Medians with their uncertainty.

A seeded bootstrap: the same samples always give the same interval. Nothing here touches a clock.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from l2tune.spec.outcome import Interval

_RESAMPLES = 2000
_SEED = 20261130


def interval(samples_us: Sequence[float]) -> Interval:
    """Return the median of `samples_us` and its bootstrap 95 % percentile interval.

    Args:
        samples_us: At least one time, microseconds.

    Raises:
        ValueError: If there is no sample.

    Source:
        Efron and Tibshirani, *An Introduction to the Bootstrap*, section 13.3.
    """
    if not samples_us:
        raise ValueError("interval: found no sample, needed at least one")
    samples = np.asarray(samples_us, dtype=np.float64)
    rng = np.random.default_rng(_SEED)
    picks = rng.integers(0, samples.size, size=(_RESAMPLES, samples.size))
    medians = np.median(samples[picks], axis=1)
    lo, hi = np.percentile(medians, [2.5, 97.5])
    middle = float(np.median(samples))
    return Interval(us=middle, lo=min(float(lo), middle), hi=max(float(hi), middle))


def paired_differences(pairs_us: Sequence[float], spacers_us: Sequence[float]) -> list[float]:
    """Subtract, round by round, a spacer's own time from that of a spacer and a kernel.

    Both were timed within milliseconds of each other, so a drifting clock cancels.

    Raises:
        ValueError: If the two were not timed in the same rounds.
    """
    if len(pairs_us) != len(spacers_us):
        raise ValueError(
            f"paired_differences: {len(pairs_us)} pairs and {len(spacers_us)} spacers, needed as"
            " many of each"
        )
    return [pair - spacer for pair, spacer in zip(pairs_us, spacers_us, strict=True)]


def choose_and_report(samples_us: Mapping[str, Sequence[float]]) -> tuple[str, Interval]:
    """Choose the fastest variant on even rounds and report it by its odd rounds.

    The least of several noisy medians is too small; on samples that had no part in the choice the
    chosen one's is not. A single variant is reported on all its samples.

    Args:
        samples_us: Times of each variant, round by round; at least two rounds.

    Returns:
        The chosen variant's name, and its interval.
    """
    if len(samples_us) == 1:
        name, samples = next(iter(samples_us.items()))
        return name, interval(samples)
    even = {name: np.median(samples[::2]) for name, samples in samples_us.items()}
    chosen = min(even, key=lambda name: float(even[name]))
    return chosen, interval(samples_us[chosen][1::2])


def fastest(times_us: Sequence[float], count: int) -> list[int]:
    """Return the positions of the `count` smallest finite times, best first."""
    order = sorted(range(len(times_us)), key=times_us.__getitem__)
    finite = (index for index in order if np.isfinite(times_us[index]))
    return list(itertools.islice(finite, count))
