"""A guess corrected by measurements: exact where it was measured, itself where nothing was."""

import itertools

import pytest

from l2tune import generate
from l2tune.generate import Fitted, estimate_us
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey

SEED = "sm90a/wgmma_split"
KEY = GemmKey.dense(512, 512, 4096, gpu=H200)
INSTANCES = [
    {
        "TILE_M": 64,
        "TILE_N": tile_n,
        "TILE_K": 64,
        "STAGES": 4,
        "SPLIT": split,
        "ROWS": 1,
        "COLS": 1,
        "PUSH": 0,
        "FLIP": 0,
        "BULK": 1,
    }
    for tile_n, split in itertools.product((32, 64, 128), (1, 2, 4))
]


def guesses(key: GemmKey = KEY) -> list[float]:
    return [estimate_us(SEED, values, key) for values in INSTANCES]


def test_without_measurements_it_is_the_guess():
    assert Fitted().estimates_us(SEED, INSTANCES, KEY) == guesses()


def test_what_was_measured_is_believed():
    times_us = [guess * (0.6 + 0.1 * i) for i, guess in enumerate(guesses())]
    measured = [(SEED, v, KEY, us) for v, us in zip(INSTANCES, times_us, strict=True)]
    assert Fitted(measured).estimates_us(SEED, INSTANCES, KEY) == pytest.approx(times_us, rel=0.02)


def test_a_seed_that_is_always_off_alike_is_corrected_everywhere():
    measured = [(SEED, v, KEY, 1.5 * g) for v, g in zip(INSTANCES, guesses(), strict=True)]
    far = GemmKey.dense(64, 64, 64, gpu=H200)
    found = Fitted(measured).estimates_us(SEED, INSTANCES, far)
    assert found == pytest.approx([1.5 * guess for guess in guesses(far)])
    assert Fitted(measured).estimates_us("triton/matmul", [], far) == []


def test_a_neighbour_s_best_instance_comes_first():
    slow = [(SEED, v, KEY, 100.0 if i else 5.0) for i, v in enumerate(INSTANCES)]
    near = GemmKey.dense(512, 576, 4096, gpu=H200)
    found = Fitted(slow).estimates_us(SEED, INSTANCES, near)
    assert min(range(len(found)), key=found.__getitem__) == 0


def test_a_shortlist_has_the_best_guesses_and_some_of_every_family():
    values = {
        "TILE_M": 64,
        "TILE_N": 8,
        "TILE_K": 64,
        "STAGES": 2,
        "SPLIT": 2,
        "ROWS": 1,
        "COLS": 1,
        "PUSH": 0,
        "FLIP": 0,
        "BULK": 1,
    }
    liked = Fitted([(SEED, values, KEY, 1.0)])
    found = generate.shortlist(KEY, liked, count=24)
    assert len(found) == 24
    families = [source.header.id for source in found]
    assert families.count("triton/matmul") >= 5
    assert {"sm90a/wgmma_persistent", SEED, "sm80/mma_multistage"} <= set(families)
    assert "sm80/naive" not in families


def test_an_instance_of_an_older_seed_gets_the_tunables_that_came_since():
    old = {"TILE_M": 64, "TILE_N": 64}
    found = generate.completed(SEED, old)
    assert found is not None
    assert set(found) == set(INSTANCES[0])
    assert (found["TILE_M"], found["TILE_N"], found["SPLIT"]) == (64, 64, 1)
    assert generate.completed("sm90a/none", old) is None
    assert generate.completed(SEED, {"ANOTHER": 1}) is None
