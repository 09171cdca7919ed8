import pytest
import torch

from l2tune.measure import operands
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.spec.problem import alignment_bytes

H200_L2_BYTES = 60 << 20


def key_of(**fields):
    return GemmKey.model_validate({"m": 24, "n": 40, "k": 56, "gpu": H200, **fields})


def sets_of(count=3, **fields):
    return operands.build(key_of(**fields), count=count, seed=5, device="cpu")


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_views_have_the_logical_sizes_and_the_strides_of_the_problem(layout):
    sets = sets_of(layout=layout, k=50)  # rows of 50 or of 24 and 40, padded to 16 bytes
    problem = sets.key.problem()
    a, b, c = sets.a[1], sets.b[1], sets.c[1]
    assert (a.shape, b.shape, c.shape) == ((24, 50), (50, 40), (24, 40))
    assert a.stride() == ((problem.lda, 1) if layout[0] == "n" else (1, problem.lda))
    assert b.stride() == ((problem.ldb, 1) if layout[1] == "n" else (1, problem.ldb))
    assert c.stride() == (problem.ldc, 1)


def test_shared_operands_have_batch_stride_zero_and_others_their_own_matrices():
    sets = sets_of(batch=4, shared="b")
    problem = sets.key.problem()
    assert sets.b[0].shape == (4, 56, 40)
    assert sets.b[0].stride(0) == 0
    assert sets.a[0].stride(0) == problem.stride_a == 24 * 56
    assert sets.c[0].stride(0) == problem.stride_c


@pytest.mark.parametrize("align", [2, 4, 8, 16])
def test_pointers_and_strides_together_have_exactly_the_alignment_of_the_key(align):
    sets = sets_of(align=align)
    problem = sets.key.problem()
    strides = [2 * s for s in (problem.lda, problem.ldb, problem.ldc)]
    for a, b, c in zip(sets.a, sets.b, sets.c, strict=True):
        pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
        assert alignment_bytes(*pointers, *strides) == problem.align == align


def test_dense_operands_whose_rows_are_unaligned_start_where_an_allocation_does():
    key = GemmKey.dense(33, 35, 37, gpu=H200)
    sets = operands.build(key, count=2, seed=0, device="cpu")
    assert key.align == 2
    assert sets.a[1].data_ptr() % 64 == 0


def test_sets_share_no_memory_and_no_values():
    sets = sets_of(count=2)
    for first, second in ((sets.a[0], sets.a[1]), (sets.b[0], sets.b[1])):
        assert not torch.equal(first, second)
        assert abs(second.data_ptr() - first.data_ptr()) >= 2 * first.numel()


def test_operands_are_normal_with_both_signs_and_hardly_a_zero():
    sets = sets_of(m=256, n=256, k=256)
    for values in (*sets.a, *sets.b):
        assert (values != 0).float().mean() >= 0.99
        assert 0.45 < (values > 0).float().mean() < 0.55
        assert abs(values.float().std() - 1.0) < 0.05


def test_outputs_are_poisoned_until_written():
    sets = sets_of()
    assert all(c.isnan().all() for c in sets.c)
    sets.c[0].zero_()
    sets.poison()
    assert sets.c[0].isnan().all()


def test_a_changed_input_is_noticed_and_refilled():
    sets = sets_of()
    assert sets.unchanged()
    sets.b[2][-1, -1] += 1
    assert not sets.unchanged()
    sets.refill()
    assert sets.unchanged()


@pytest.mark.parametrize("fields", [{}, {"batch": 3}, {"batch": 3, "shared": "ab"}, {"align": 4}])
def test_the_other_order_of_b_holds_the_same_values(fields):
    sets = sets_of(**fields)
    for b, other in zip(sets.b, operands.other_b(sets), strict=True):
        assert torch.equal(b, other)
        assert b.stride()[-1] != other.stride()[-1]


def test_products_of_the_views_are_right():
    sets = sets_of(layout="tt", batch=2, shared="a")
    torch.matmul(sets.a[0], sets.b[0], out=sets.c[0])
    reference = sets.a[0].double() @ sets.b[0].double()
    assert (sets.c[0].double() - reference).abs().max() < 0.1


def count_of(set_bytes, launch_us):
    return operands.set_count(set_bytes, launch_us, l2_bytes=H200_L2_BYTES)


def test_small_problems_get_as_many_sets_as_are_allowed():
    assert count_of(24 << 10, 2.0) == operands.MAX_SETS


def test_sets_exceed_the_l2_threefold_and_fill_a_replay():
    assert count_of(25 << 20, 500.0) == 8  # 180 MB / 25 MB, and 2 launches would last 1 ms
    assert count_of(25 << 20, 25.0) == 40  # 1 ms / 25 us


def test_there_are_two_sets_even_where_one_is_huge():
    assert count_of(1 << 30, 13000.0) == 2
    assert count_of(20 << 30, 100000.0) == 2


def test_sets_stay_within_eight_gigabytes():
    assert count_of(1 << 30, 1.0) == 8
