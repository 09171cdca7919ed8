"""The guess for untuned products: right where the records agree, in doubt where they do not."""

import dataclasses
import math
import random

import pytest
import tuned
from tuned import compiled, guess_us

from l2tune.generate.nearest import Nearest
from l2tune.spec.gpu import A100, H200, Gpu
from l2tune.spec.key import GemmKey
from l2tune.spec.roofline import floor_us

NEW = [GemmKey.dense(m, n, k, gpu=H200)
       for m, n, k in ((512, 2048, 1536), (3000, 264, 512), (77, 4096, 4096))]  # fmt: skip


def about_as_fast(key: GemmKey) -> float:
    """What torch takes, over the floor, where it is as fast as the best kernel."""
    return 1.5 * min(guess_us(compiled(tile), key) for tile in (64, 256)) / floor_us(key)


def gaining(gain: float, noise: float):
    generator = random.Random(0)
    return lambda key: about_as_fast(key) * gain * math.exp(noise * generator.gauss(0, 1))


@pytest.mark.parametrize("key", NEW, ids=lambda key: key.label)
def test_where_all_records_are_off_alike_the_guess_is_exact_and_the_best_instance_taken(key):
    choice = Nearest(tuned.records()).choose(key)
    guesses = {tile: guess_us(compiled(tile), key) for tile in (64, 256)}
    assert choice.us == pytest.approx(1.5 * min(guesses.values()))
    assert choice.torch_us == pytest.approx(2.0 * floor_us(key))
    chosen = choice.record.verified.compiled.source
    assert chosen.tunables["TILE_N"] == min(guesses, key=guesses.get)


@pytest.mark.parametrize(("torch_off", "serves"), [(9.0, True), (0.9, False)])
def test_a_kernel_serves_only_where_it_is_faster(torch_off, serves):
    model = Nearest(tuned.records(torch_off=lambda _: torch_off))
    assert [model.choose(key).serves for key in NEW] == [serves] * len(NEW)


def test_a_gain_below_the_noise_is_not_believed():
    key = GemmKey.dense(2048, 2048, 2048, gpu=H200)

    def serves(gain: float) -> bool:
        equal = about_as_fast(key)
        return Nearest(tuned.records(torch_off=lambda _: equal * gain)).choose(key).serves

    assert not serves(1.01)


def test_where_records_disagree_or_are_far_a_gain_must_be_larger():
    near, far = NEW[0], GemmKey.dense(8, 8, 32, gpu=H200)
    calm = Nearest(tuned.records(torch_off=lambda _: 9.0))
    wild = Nearest(tuned.records(torch_off=gaining(1.1, 0.3)))
    assert wild.choose(near).doubt > 2 * calm.choose(near).doubt
    assert calm.choose(far).doubt > 2 * calm.choose(near).doubt


def test_a_kernel_s_time_is_what_was_measured_of_it_nearby():
    def off(key):
        return 3.0 if key.k == 4096 else 1.0

    found = tuned.records(off=off)
    measured = [
        (
            tuned.FAMILY,
            compiled(tile).source.tunables,
            r.key,
            off(r.key) * guess_us(compiled(tile), r.key),
        )
        for r in found
        for tile in (64, 256)
    ]
    model = Nearest(found, measured)
    deep, flat = (GemmKey.dense(1000, 1000, k, gpu=H200) for k in (4096, 256))
    for key, factor in ((deep, 3.0), (flat, 1.0)):
        choice = model.choose(key)
        guess = guess_us(choice.record.verified.compiled, key)
        assert choice.us / guess == pytest.approx(factor, rel=0.1)


def test_a_kernel_that_does_not_admit_the_problem_is_not_taken():
    strict = Nearest(tuned.records(multiple=64))
    assert strict.choose(NEW[0]) is not None
    assert strict.choose(NEW[1]) is None  # n is 264
    both = Nearest([*tuned.records(multiple=64), *tuned.records(tiles=(128,))])
    assert both.choose(NEW[1]).record.verified.compiled.source.tunables["TILE_N"] == 128


def test_memory_that_is_less_aligned_than_a_kernel_needs_is_torchs():
    odd = GemmKey.dense(999, 1001, 777, gpu=H200)
    assert odd.align == 2
    model = Nearest(tuned.records())
    assert model.choose(odd) is None
    shifted = dataclasses.replace(NEW[0].problem(), align=2)
    assert model.choose(NEW[0], shifted) is None


def test_few_records_leave_all_to_torch():
    few = tuned.records(torch_off=lambda _: 9.0)[:15]
    choice = Nearest(few).choose(NEW[0])
    assert choice.torch_us > 2 * choice.us
    assert not choice.serves
    assert Nearest(few[:2]).choose(NEW[0]) is None


@pytest.mark.parametrize(
    "changes", [{"dtype": "bfloat16"}, {"layout": "nt"}, {"gpu": A100}, {"acc": "float16"}], ids=str
)
def test_records_say_nothing_of_another_dtype_layout_or_gpu(changes):
    assert Nearest(tuned.records()).choose(NEW[0].model_copy(update=changes)) is None


def test_a_gpu_without_a_floor_or_a_kernel_without_a_guess_is_left_out():
    unknown = Gpu(name="NVIDIA H20", capability=(9, 0), sms=78)
    there = [
        tuned.record(r.key.model_copy(update={"gpu": unknown}), r.verified.compiled, 1.0, 2.0)
        for r in tuned.records()
    ]
    key = NEW[0].model_copy(update={"gpu": unknown})
    assert Nearest(there).choose(key) is None
    assert Nearest([]).choose(key) is None


def test_a_file_of_a_seeds_name_with_other_tunables_is_left_out(monkeypatch):
    monkeypatch.setattr("l2tune.generate.nearest.completed", lambda seed_id, values: None)
    assert Nearest(tuned.records()).choose(NEW[0]) is None
