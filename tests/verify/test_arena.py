"""What surrounds the operands of a trial, and what that shows."""

import itertools

import pytest
import torch

from l2tune.verify.arena import POISON, build
from l2tune.verify.case import Case

LAYOUTS = ["nn", "nt", "tn", "tt"]
ODD = Case(5, 7, 9, 3, shared="b", pad=(1, 3, 2), offset=(1, 4, 64), gap=5)


def arena(case=ODD, layout="nn", dtype=torch.float16):
    return build(case, layout, dtype=dtype, device="cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_operands_have_the_cases_shape_and_lie_where_the_problem_says(layout):
    made = arena(layout=layout)
    p = made.problem
    assert made.logical_a.shape == (3, 5, 9)
    assert made.logical_b.shape == (1, 9, 7)
    assert made.c.view.shape == (3, 5, 7)
    assert made.a.view.stride() == (p.stride_a, p.lda, 1)
    assert made.b.view.stride()[1:] == (p.ldb, 1)
    assert made.c.view.stride() == (p.stride_c, p.ldc, 1)


def test_offsets_count_from_a_256_byte_boundary():
    for case in (ODD, Case(64, 64, 64)):
        made = arena(case)
        for operand, offset in zip((made.a, made.b, made.c), case.offset, strict=True):
            start = operand.address - operand.buffer.data_ptr() - 2 * offset
            assert start % 256 == 0


@pytest.mark.parametrize(
    ("layout", "dtype"), [*itertools.product(LAYOUTS, ["float16", "bfloat16"])]
)
def test_everything_around_the_inputs_is_nan(layout, dtype):
    made = arena(layout=layout, dtype=getattr(torch, dtype))
    for operand in (made.a, made.b):
        assert operand.view.isfinite().all()
        around = operand.buffer.clone().view(operand.view.dtype)
        around.as_strided(
            operand.view.shape, operand.view.stride(), operand.view.storage_offset()
        ).fill_(torch.nan)
        assert around.isnan().all()


def test_the_guards_are_at_least_64_kilobytes_on_each_side():
    made = arena()
    for operand in (made.a, made.b, made.c):
        before = operand.view.storage_offset()
        last = operand.view.storage_offset() + sum(
            (n - 1) * s for n, s in zip(operand.view.shape, operand.view.stride(), strict=True)
        )
        assert 2 * before >= 1 << 16
        assert 2 * (operand.buffer.numel() - last - 1) >= 1 << 16


def test_the_output_starts_poisoned_and_is_poisoned_again_once_taken():
    made = arena()
    assert (made.c.buffer == POISON).all()
    made.c.view.fill_(1.0)
    result, intact = made.take_result()
    assert intact
    assert (result == 1.0).all()
    assert (made.c.buffer == POISON).all()


@pytest.mark.parametrize("where", ["before", "after", "between rows", "between matrices"])
def test_a_write_outside_the_result_is_seen(where):
    made = arena()
    first, p = made.c.view.storage_offset(), made.problem
    place = {
        "before": first - 1,
        "after": first + 2 * p.stride_c + 4 * p.ldc + 7,
        "between rows": first + 7,
        "between matrices": first + p.stride_c - 1,
    }[where]
    made.c.buffer[place] = 0
    assert made.take_result()[1] is False


def test_a_poison_of_either_type_is_a_nan_that_arithmetic_does_not_make():
    for dtype in (torch.float16, torch.bfloat16):
        poison = torch.tensor([POISON], dtype=torch.int16).view(dtype)
        assert poison.isnan()
        made = (torch.tensor([torch.inf], dtype=dtype) * 0).view(torch.int16)
        assert made.item() & 0x7FFF != POISON
