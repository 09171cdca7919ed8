"""What can be said of the library baselines without a GPU: the bindings are as the code needs them.

Results and speed are checked on a GPU. The bindings import without CUDA's libraries.
"""

import nvmath.bindings.cublas as blas
import nvmath.bindings.cublasLt as lt
import pytest
import torch

from l2tune.errors import UnsupportedProblemError
from l2tune.measure import cublaslt
from l2tune.measure.gemm_layout import gemm_of

PARAMETERS = {
    (blas, "set_stream"): "handle stream_id",
    (blas, "set_workspace"): "handle workspace workspace_size_in_bytes",
    (blas, "set_math_mode"): "handle mode",
    (blas, "gemm_ex"): "handle transa transb m n k alpha a atype lda b btype ldb beta c ctype ldc"
    " compute_type algo",
    (blas, "gemm_strided_batched_ex"): "handle transa transb m n k alpha a atype lda stride_a b"
    " btype ldb stride_b beta c ctype ldc stride_c batch_count compute_type algo",
    (lt, "matmul"): "light_handle compute_desc alpha a adesc b bdesc beta c cdesc d ddesc algo"
    " workspace workspace_size_in_bytes stream",
    (lt, "matmul_algo_get_heuristic"): "light_handle operation_desc adesc bdesc cdesc ddesc"
    " preference requested_algo_count heuristic_results_array return_algo_count",
    (lt, "matmul_algo_config_get_attribute"): "algo attr buf size_in_bytes size_written",
    (lt, "matrix_layout_create"): "type rows cols ld",
    (lt, "matmul_desc_create"): "compute_type scale_type",
    (lt, "matmul_preference_create"): "",
    (lt, "matmul_desc_set_attribute"): "matmul_desc attr buf size_in_bytes",
    (lt, "matrix_layout_set_attribute"): "mat_layout attr buf size_in_bytes",
    (lt, "matmul_preference_set_attribute"): "pref attr buf size_in_bytes",
}


def signature_of(function) -> str:
    first_line = function.__doc__.splitlines()[0]
    inside = first_line.partition("(")[2].rpartition(")")[0]
    return " ".join(parameter.split()[-1] for parameter in inside.split(", ") if parameter)


@pytest.mark.parametrize(("module", "name"), PARAMETERS)
def test_bindings_take_the_arguments_we_pass(module, name):
    assert signature_of(getattr(module, name)) == PARAMETERS[module, name]


def test_bindings_have_the_numbers_of_cuda_s_headers():
    assert (blas.ComputeType.COMPUTE_32F, blas.GemmAlgo.DFALT) == (68, -1)
    assert blas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION == 16
    assert (blas.Status.SUCCESS, blas.Status.NOT_SUPPORTED) == (0, 15)
    assert {scheme.name: int(scheme) for scheme in cublaslt.FLOAT32_REDUCTIONS} == {
        "NONE": 0,
        "COMPUTE_TYPE": 2,
    }


def test_an_algorithm_is_what_a_heuristic_result_starts_with():
    result = lt.matmul_heuristic_result_dtype
    assert result.itemsize == 96
    assert result.fields["algo"][1] == 0
    assert {"state", "workspace_size"} <= result.fields.keys()


def test_every_attribute_we_set_or_read_has_a_dtype():
    for name in ("TRANSA", "TRANSB"):
        assert lt.get_matmul_desc_attribute_dtype(lt.MatmulDescAttribute[name])
    for name in ("BATCH_COUNT", "STRIDED_BATCH_OFFSET"):
        assert lt.get_matrix_layout_attribute_dtype(lt.MatrixLayoutAttribute[name])
    for name in ("MAX_WORKSPACE_BYTES", "REDUCTION_SCHEME_MASK", "MIN_ALIGNMENT_D_BYTES"):
        assert lt.get_matmul_preference_attribute_dtype(lt.MatmulPreferenceAttribute[name])
    for attribute in lt.MatmulAlgoConfigAttribute:
        assert lt.get_matmul_algo_config_attribute_dtype(attribute)


def test_an_algorithm_newer_than_the_bindings_still_has_a_description():
    assert cublaslt._name(lt.MatmulTile, int(lt.MatmulTile.TILE_128x64)) == "128x64"
    assert cublaslt._name(lt.MatmulTile, 10**6) == "1000000"


def test_layouts_are_told_from_strides():
    a, b, out = torch.empty(3, 40, 24), torch.empty(16, 24).mT, torch.empty(3, 40, 32)[..., :16]
    found = gemm_of(a, b, out)
    assert (found.m, found.n, found.k, found.batch) == (40, 16, 24, 3)
    assert found.a[:3] == (False, 24, 960)
    assert found.b[:3] == (True, 24, 0)
    assert found.out[:3] == (False, 32, 1280)


def test_one_row_and_one_column_need_no_step_of_their_own():
    row, column = torch.empty(1, 5).as_strided((1, 5), (1, 1)), torch.empty(5, 1)
    assert gemm_of(row, column, torch.empty(1, 1)).a[:3] == (False, 5, 0)


def test_what_a_blas_has_no_words_for_is_refused():
    a, b = torch.empty(8, 16)[:, ::2], torch.empty(8, 4)
    with pytest.raises(UnsupportedProblemError, match="strides 16 and 2"):
        gemm_of(a, b, torch.empty(8, 4))
    with pytest.raises(UnsupportedProblemError, match=r"out is \[4, 8\]"):
        gemm_of(torch.empty(8, 8), b, torch.empty(4, 8))
