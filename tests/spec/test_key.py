"""A key's text stands for exactly one key."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from samples import gpus, keys

from l2tune.errors import KeyFormatError
from l2tune.spec.gpu import H200, Gpu
from l2tune.spec.key import GemmKey

TEXT = "gemm/float16/float32/nn/64x64x8192/b1/none/align16/NVIDIA%20H200-9.0-132"


@given(keys())
def test_a_key_reads_back_from_its_text(key):
    assert GemmKey.parse(str(key)) == key


@given(gpus)
def test_a_gpu_reads_back_from_its_text(gpu):
    assert Gpu.parse(str(gpu)) == gpu
    assert "/" not in str(gpu), "it must be one part of a key"


@given(keys(), keys())
def test_two_keys_share_a_text_only_if_they_are_equal(one, other):
    assert (str(one) == str(other)) == (one == other)


@given(keys(), st.data())
def test_a_change_in_any_field_is_another_text(key, data):
    other = data.draw(keys())
    field = data.draw(st.sampled_from(list(GemmKey.model_fields)))
    changed = key.model_copy(update={field: getattr(other, field)})
    assume(changed != key)
    assert str(changed) != str(key)


@pytest.mark.parametrize(
    "text",
    [
        "", "gemm", TEXT + "/", " " + TEXT, TEXT.replace("64x64", "064x64"),
        TEXT.replace("64x64x8192", "0x64x8192"), TEXT.replace("nn", "xx"),
        TEXT.replace("float16", "float64"), TEXT.replace("align16", "align3"),
        TEXT.replace("/b1", "/b1~"), TEXT.replace("none", "relu"), TEXT.replace("-132", ""),
        TEXT.replace("%20", " "), TEXT.replace("64x64", "٦٤x64"),
        TEXT.replace("64x64", "9" * 5000 + "x64"), TEXT + "9" * 5000,
    ],
)  # fmt: skip
def test_a_text_that_no_key_writes_is_refused(text):
    assert str(GemmKey.parse(TEXT)) == TEXT
    with pytest.raises(KeyFormatError):
        GemmKey.parse(text)


@given(st.text(max_size=80))
def test_any_text_is_a_key_or_a_key_format_error(text):
    with pytest.raises(KeyFormatError):
        GemmKey.parse(text)


@given(keys())
def test_the_dense_problem_of_a_key_has_its_alignment(key):
    problem = key.problem()
    assert problem.align <= key.align
    assert 2 * problem.lda % key.align == 2 * problem.ldb % key.align == 0
    assert problem.a_batched == int(key.batch > 1 and "a" not in key.shared)


def test_a_mig_slice_is_another_gpu():
    slice_of = H200.model_copy(update={"sms": 16})
    key = GemmKey.dense(64, 64, 64, gpu=H200)
    assert str(GemmKey.dense(64, 64, 64, gpu=slice_of)) != str(key)


def test_half_precision_rows_of_odd_length_are_aligned_to_two_bytes():
    assert GemmKey.dense(64, 64, 65, gpu=H200).align == 2
    assert GemmKey.dense(64, 64, 64, gpu=H200).align == 16
