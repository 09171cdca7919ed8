"""Counts for a key, from pieces of it, are those of the whole product."""

from pathlib import Path

import exploit_files
import pytest
from emulated_seeds import compiled, run
from seeds import MMA, TRITON, WGMMA

from l2tune import pipeline, stages
from l2tune.measure.work import Work, count_here
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey

CASES = {
    "mma": ("sm80/mma_multistage", {**MMA, "SPLIT": 1, "STAGES": 3}, 64, 64, 64),
    "split": ("sm80/mma_multistage", {**MMA, "SPLIT": 2, "STAGES": 3}, 64, 64, 128),
    "wgmma": ("sm90a/wgmma_persistent", {**WGMMA, "CLUSTER": 1}, 128, 128, 64),
    "triton": ("triton/matmul", {**TRITON, "NUM_STAGES": 3}, 64, 64, 64),
}


@pytest.mark.parametrize("name", CASES)
def test_pieces_add_up_to_the_whole_product(name: str, tmp_path: Path) -> None:
    seed, values, tile_m, tile_n, step = CASES[name]
    built = compiled(seed, values, tmp_path)
    m, n, k = tile_m + 8, tile_n, 5 * step  # two tiles, one of them ragged; deeper than any piece
    work = count_here((built[0], GemmKey.dense(m, n, k, gpu=H200), tmp_path))
    assert work is not None
    flops = work[0].mma_flops + work[0].wgmma_flops
    assert flops == pytest.approx(2 * 2 * tile_m * tile_n * k)
    whole = run(built, m=2 * tile_m, n=n, k=k, align=16, sms=4).emulated.statistics
    assert len(whole) == len(work)
    for launch, ran in zip(work.values(), whole, strict=True):
        left_out = sum(
            times for mnemonic, times in ran.mix.items()
            if mnemonic.startswith(("mov.", "cvta.", "ld.param.", "ret"))
        )  # fmt: skip
        assert launch.issued == pytest.approx(ran.steps - left_out, rel=0.15)


def test_operands_are_counted_once_for_each_piece(tmp_path: Path) -> None:
    built, _ = compiled("sm80/mma_multistage", {**MMA, "SPLIT": 1, "STAGES": 3}, tmp_path)
    key = GemmKey.dense(128, 64, 640, gpu=H200)
    work = count_here((built, key, tmp_path))
    assert work is not None
    assert work[0].l2_bytes == 2 * (2 * (64 + 64) * 640 + 128 * 64)


def test_what_the_emulator_refuses_is_not_counted(tmp_path: Path) -> None:
    key = exploit_files.key_of("shared_race", H200)
    source = exploit_files.source_of("shared_race", key)
    built = stages.build(source, key, pipeline.Bench(None, tmp_path))
    assert count_here((built, key, tmp_path)) is None


def test_a_straight_line_never_leads_below_nothing() -> None:
    assert Work(issued=4.0).towards(Work(issued=2.0), 3.0) == Work()
    assert Work(issued=4.0).towards(Work(issued=6.0), 2.0) == Work(issued=8.0)
