"""A pack's rough times: written, read back, and refused where they are something else."""

from pathlib import Path

import pytest
from samples import TOOLS

from l2tune.errors import PackError
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.store import Measured, Ranked
from l2tune.store.pack import shipped_folder
from l2tune.store.rough import FILE, read_rough, write_rough

KEYS = [GemmKey.dense(64, 64, k, gpu=H200) for k in (64, 128)]


def ranked(key: GemmKey, *times_us: float) -> Ranked:
    found = tuple(
        Measured(text="0" * 64, seed="s/x", values={"TILE": 8 * i}, us=us)
        for i, us in enumerate(times_us, 1)
    )
    return Ranked(key=key, torch_us=None, found=found, tools=TOOLS)


def test_times_are_read_back_to_four_digits_without_what_physics_forbids(tmp_path: Path):
    write_rough(tmp_path, [ranked(KEYS[0], 2.34567, -1.0), ranked(KEYS[1], 3.0, 4.0)])
    assert read_rough(tmp_path, H200) == [
        ("s/x", {"TILE": 8}, KEYS[1], 3.0),
        ("s/x", {"TILE": 16}, KEYS[1], 4.0),
        ("s/x", {"TILE": 8}, KEYS[0], 2.346),
    ]


def test_nothing_is_written_of_nothing_and_nothing_read_where_nothing_is(tmp_path: Path):
    write_rough(tmp_path, [])
    assert not (tmp_path / FILE).exists()
    assert read_rough(tmp_path, H200) == []


@pytest.mark.parametrize(
    "text",
    ["", "{}", '[["s",{}]]\n{"key":"no","us":{}}', '[["s",{}]]\n{"key":"x"}', "[]\n\x00",
     '[]\n{"key":"gemm/float16/float32/nn/64x64x64/b1/none/align16","us":{"3":1.0}}'],
)  # fmt: skip
def test_what_is_not_of_that_form_is_refused_in_a_sentence(text: str, tmp_path: Path):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(PackError, match="build the pack again"):
        read_rough(tmp_path, H200)


def test_the_shipped_times_can_be_read():
    found = read_rough(shipped_folder() / H200.slug, H200)
    assert len({key for _, _, key, _ in found}) >= 1000
    assert all(us > 0 for *_, us in found)
