"""What the search is offered: whole files inside the key's contract, ranked, and compilable."""

import math

import pytest

from l2tune import compile, generate, stages  # noqa: A004
from l2tune.spec.expr import cdiv
from l2tune.spec.gpu import A100, H200, Gpu
from l2tune.spec.header import parse
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled
from l2tune.store import Artifacts
from l2tune.verify import check_contract, check_resources, screen

KEYS = [
    GemmKey.dense(4096, 4096, 4096, gpu=H200),
    GemmKey.dense(64, 64, 8192, gpu=H200),
    GemmKey.dense(1, 4096, 4096, gpu=H200, layout="nt"),
    GemmKey.dense(1000, 1000, 1000, gpu=H200, layout="tn", dtype="bfloat16"),
    GemmKey.dense(512, 512, 512, gpu=H200, batch=16, layout="tt"),
    GemmKey.dense(127, 129, 65, gpu=H200),
    GemmKey.dense(512, 64, 16384, gpu=A100),
    GemmKey.dense(7, 9, 11, gpu=A100, batch=3),
    GemmKey.dense(4096, 2, 4096, gpu=A100),
]


@pytest.fixture(scope="module")
def found() -> dict[GemmKey, list]:
    return {key: generate.candidates(key) for key in KEYS}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.label)
def test_every_candidate_admits_its_key(found, key):
    assert found[key]
    assert all(source.serves(key) for source in found[key])


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.label)
def test_every_candidate_is_a_whole_file_that_settles_its_tunables(found, key):
    for source in found[key]:
        again = parse(source.text)[1]
        assert again == source.header
        assert all(isinstance(value, int) for value in again.tune.values())


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.label)
def test_no_candidate_is_offered_twice_and_no_family_beyond_its_share(found, key):
    names = [source.name for source in found[key]]
    assert len(names) == len(set(names))
    families = [source.header.id for source in found[key]]
    assert max(map(families.count, families)) <= 16


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.label)
def test_the_guess_is_finite_for_tiled_kernels_and_orders_each_family(found, key):
    for family in {source.header.id for source in found[key]}:
        guesses = [
            generate.estimate_us(family, source.tunables, key)
            for source in found[key]
            if source.header.id == family
        ]
        assert guesses == sorted(guesses)
        if family not in ("sm80/naive", "sm80/tiled"):
            assert all(math.isfinite(guess) and guess > 0 for guess in guesses)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.label)
def test_a_cuda_kernel_that_serves_everything_is_always_among_them(found, key):
    assert any(source.header.id == "sm80/naive" for source in found[key])


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.label)
def test_what_streams_one_operand_is_offered_for_few_rows_or_columns(found, key):
    offered = [source for source in found[key] if source.header.id == "sm80/skinny"]
    assert bool(offered) == (min(key.m, key.n) <= 8)


@pytest.mark.parametrize(
    ("shape", "shared"),
    [
        ((512, 512, 4096), {0}),  # less than a wave of any tile
        ((4096, 12288, 8192), {1, 2}),
        ((1024, 1024, 256), set()),  # too few steps to share
        ((128 * 12, 256 * 11, 4096), {1, 2}),  # 132 of the largest tiles, more of the others
    ],
)
def test_steps_are_shared_out_where_the_last_wave_of_tiles_is_not_full(shape, shared):
    key = GemmKey.dense(*shape, gpu=H200)
    offered = [s for s in generate.candidates(key) if s.header.id == "sm90a/wgmma_streamk"]
    assert {source.tunables["SHARED"] for source in offered} == shared
    for source in offered:
        tile_m, tile_n = source.tunables["TILE_M"], source.tunables["TILE_N"]
        assert cdiv(key.m, tile_m) * cdiv(key.n, tile_n) % H200.sms


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (64, 72, 8192)])
def test_sums_in_float16_are_offered_to_those_who_ask_and_no_others(shape):
    key = GemmKey.dense(*shape, gpu=H200)
    half = GemmKey.dense(*shape, gpu=H200, acc="float16")
    assert {source.acc for source in generate.candidates(key)} == {"float32"}
    offered = generate.candidates(half)
    assert {source.header.id for source in offered} == {"sm90a/wgmma_half"}
    assert all(source.serves(half) and not source.serves(key) for source in offered)
    guesses = [generate.estimate_us(s.header.id, s.tunables, half) for s in offered]
    assert guesses == sorted(guesses)
    assert math.isfinite(guesses[-1])


def test_a_gpu_that_no_seed_targets_gets_nothing():
    volta = Gpu(name="V100", capability=(7, 0), sms=80)
    assert generate.candidates(GemmKey.dense(64, 64, 64, gpu=volta)) == []


def test_every_seed_is_named_by_its_path():
    for seed_id, text in generate.seed_texts().items():
        assert parse(text)[1].id == seed_id


def test_an_unknown_seed_is_a_key_error():
    with pytest.raises(KeyError):
        generate.seed_text("sm80/nothing")


TO_COMPILE = [
    (gpu, seed_id)
    for gpu in (A100, H200)
    for seed_id, text in generate.seed_texts().items()
    if gpu.arch in parse(text)[1].arch
    if (gpu, seed_id) != (H200, "sm80/mma_streamk")  # offered before Hopper only
]


@pytest.mark.parametrize(("gpu", "seed_id"), TO_COMPILE, ids=lambda value: str(value)[:24])
def test_the_best_guess_of_every_seed_compiles_and_fits(gpu, seed_id, cache_dir):
    if seed_id.startswith("triton"):
        pytest.importorskip("triton")
    rows = 8 if seed_id == "sm80/skinny" else 512
    half = seed_id == "sm90a/wgmma_half"
    kind = {"dtype": "float16", "acc": "float16"} if half else {"dtype": "bfloat16"}
    key = GemmKey.dense(rows, 256, 1024, gpu=gpu, layout="nt", **kind)
    source = next(s for s in generate.candidates(key) if s.header.id == seed_id)
    source = stages.source_for(source.text, key)
    assert screen(source) is None
    assert check_contract(source, key) is None
    built = compile.compile_kernel(source, Artifacts(cache_dir))
    assert isinstance(built, Compiled), built
    assert built.writable_globals == ()
    spills = {name: used.spill_bytes for name, used in built.resources.items()}
    assert max(spills.values()) <= 32, f"{source.name}: {spills}"  # the few outside the main loop
    assert check_resources(built, key) is None
