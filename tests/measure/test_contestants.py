"""How `torch.matmul` is timed: by the key, and in full precision where that is asked."""

from types import SimpleNamespace

import pytest
import torch

from l2tune.measure import contestants
from l2tune.measure.libraries import LIBRARIES, library_contestants
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey


def flags() -> tuple[bool, bool]:
    options = torch.backends.cuda.matmul
    return options.allow_fp16_accumulation, options.allow_fp16_reduced_precision_reduction


@pytest.mark.parametrize("acc", ["float16", "float32"])
@pytest.mark.parametrize("before", [False, True])
def test_torch_sums_as_the_key_says_while_it_is_timed(acc, before, allow_half_sums, monkeypatch):
    allow_half_sums(before)
    seen = []
    monkeypatch.setattr(torch, "matmul", lambda a, b, out: seen.append(flags()))
    sets = SimpleNamespace(a=[1], b=[1], c=[1])
    with contestants.torch_sums_in(acc):
        contestants.torch_matmul(sets).launch(0, 0)
        contestants.torch_full_precision(sets).launch(0, 0)
        contestants.torch_matmul(sets).launch(0, 0)
    half = acc == "float16"
    assert seen == [(half, True), (False, False), (half, True)]
    assert flags() == (before, True)


def test_libraries_are_named_as_missing_for_sums_in_float16():
    sets = SimpleNamespace(key=GemmKey.dense(64, 64, 64, gpu=H200, acc="float16"))
    assert library_contestants(sets, None, tuning_s=1.0) == ([], LIBRARIES)
