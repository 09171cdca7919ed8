import random
from collections import Counter
from itertools import islice
from statistics import fmean

import pytest

from l2tune.measure.random_gaps import arrivals, call_count


def drawn(*, calls: int, gap_us: float = 1000.0, seed: int = 0) -> list[tuple[str, float]]:
    return list(arrivals(["a", "b", "c"], calls=calls, gap_us=gap_us, rng=random.Random(seed)))


def test_everybody_is_called_as_often_and_none_only_after_itself() -> None:
    names = [name for name, _ in drawn(calls=200)]
    assert Counter(names) == {"a": 200, "b": 200, "c": 200}
    assert all(set(names[i : i + 3]) == {"a", "b", "c"} for i in range(0, 600, 3))
    followed = Counter(zip(names, islice(names, 1, None), strict=False))
    assert len(followed) == 9, followed


def test_gaps_are_exponential() -> None:
    gaps = [gap for _, gap in drawn(calls=2000, gap_us=500.0)]
    assert fmean(gaps) == pytest.approx(500.0, rel=0.05)
    assert sum(gap > 500.0 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)


def test_the_seed_decides() -> None:
    assert drawn(calls=9, seed=1) == drawn(calls=9, seed=1) != drawn(calls=9, seed=2)


def test_calls_fill_the_budget_between_30_and_500() -> None:
    assert call_count(5, gap_us=1000.0, launch_us=100.0, budget_s=1.4) == 200
    assert call_count(5, gap_us=1e6, launch_us=100.0, budget_s=1.0) == 30
    assert call_count(2, gap_us=1.0, launch_us=1.0, budget_s=60.0) == 500
