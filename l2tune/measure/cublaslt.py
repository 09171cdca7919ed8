"""cuBLASLt as a baseline: the algorithms that it offers for a product, its favourite first.

All sum in float32, and those that would reduce partial sums in half precision are left out, as the
kernels that they are compared with may not do it either. Nothing here times anything.
"""

import ctypes
import functools
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import nvmath.bindings.cublasLt as lt
import torch
from nvmath.bindings.cublas import ComputeType, Status

from l2tune.errors import UnsupportedProblemError
from l2tune.measure.cublas import CUDA_TYPES, ONE, WORKSPACE_BYTES, ZERO
from l2tune.measure.cublas import Launch as Launch
from l2tune.measure.cublas import cublas as cublas
from l2tune.measure.gemm_layout import Gemm, Matrix, gemm_of

R_32F = 0
"""CUDA_R_32F of `cudaDataType`."""
FLOAT32_REDUCTIONS = (lt.ReductionScheme.NONE, lt.ReductionScheme.COMPUTE_TYPE)
"""The others, INPLACE and OUTPUT_TYPE, add partial sums in the type of the result."""


def cublaslt(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, limit: int = 100
) -> "list[Algorithm]":
    """Ask the heuristic for algorithms that compute `out = a @ b`.

    Args:
        a: As `gemm_of` has it.
        b: As `gemm_of` has it.
        out: As `gemm_of` has it.
        limit: How many to ask for; 1 gives what a plain call of cuBLASLt would use.

    Returns:
        At most `limit`, best guess first; none if cuBLASLt does not support the product.

    Raises:
        UnsupportedProblemError: If the tensors do not fit, see `gemm_of`.
    """
    plan = _Plan(gemm_of(a, b, out), out.device)
    results = np.zeros(limit, dtype=lt.matmul_heuristic_result_dtype)
    count = ctypes.c_int(0)
    try:
        lt.matmul_algo_get_heuristic(
            plan.handle, plan.operation, plan.b, plan.a, plan.out, plan.out, plan.preference,
            limit, results.ctypes.data, ctypes.addressof(count),
        )  # fmt: skip
    except lt.cuBLASLtError as error:
        if error.status != Status.NOT_SUPPORTED:
            raise
    offered = [results[index : index + 1].copy() for index in range(count.value)]
    usable = (Algorithm(plan, x, (a, b, out)) for x in offered if x["state"][0] == Status.SUCCESS)
    return [algorithm for algorithm in usable if algorithm.reduction in FLOAT32_REDUCTIONS]


class Algorithm:
    """One algorithm for one product, bound to its tensors.

    What one call of `cublaslt` returned shares a workspace: launch it on one stream at a time.
    """

    def __init__(
        self,
        plan: "_Plan",
        result: "np.ndarray[Any, Any]",
        tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ) -> None:
        """Keep the algorithm that a `cublasLtMatmulHeuristicResult_t` starts with."""
        self._plan = plan
        self._result = result
        self._tensors = tensors

    @functools.cached_property
    def launch(self) -> Launch:
        """The launch for the tensors that `cublaslt` was asked about."""
        return self.bind(*self._tensors)

    def bind(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Launch:
        """Make the launch for other tensors of the same sizes, strides and alignment.

        Raises:
            UnsupportedProblemError: If they are not.
        """
        plan, found = self._plan, gemm_of(a, b, out)
        if found != plan.gemm:
            raise UnsupportedProblemError(
                f"cublaslt: the algorithm is for {plan.gemm}, the tensors are {found}; ask again"
            )
        pointer = out.data_ptr()
        arguments = (
            *(plan.handle, plan.operation, ctypes.addressof(ONE)),
            *(b.data_ptr(), plan.b, a.data_ptr(), plan.a, ctypes.addressof(ZERO)),
            *(pointer, plan.out, pointer, plan.out, self._result.ctypes.data),
            *(plan.workspace.data_ptr(), WORKSPACE_BYTES),
        )

        def launch(stream: int, _alive: tuple[Any, ...] = (plan, self._result, a, b, out)) -> None:
            lt.matmul(*arguments, stream)

        return launch

    @functools.cached_property
    def reduction(self) -> int:
        """How it adds the partial sums of a split k: a `ReductionScheme`."""
        return self._read(lt.MatmulAlgoConfigAttribute.REDUCTION_SCHEME)

    def describe(self) -> str:
        """Name what sets it apart, as `algorithm 66, tile 128x64, stages 64xAUTO, ...`."""
        attribute = lt.MatmulAlgoConfigAttribute
        tile, stages, cluster = (
            _name(enum, self._read(which))
            for enum, which in (
                (lt.MatmulTile, attribute.TILE_ID),
                (lt.MatmulStages, attribute.STAGES_ID),
                (lt.ClusterShape, attribute.CLUSTER_SHAPE_ID),
            )
        )
        return (
            f"algorithm {self._read(attribute.ID)}, tile {tile}, stages {stages},"
            f" cluster {cluster}, split {self._read(attribute.SPLITK_NUM)},"
            f" swizzle {self._read(attribute.CTA_SWIZZLING)},"
            f" custom {self._read(attribute.CUSTOM_OPTION)}"
        )

    def _read(self, attribute: int) -> int:
        value = np.zeros(1, dtype=lt.get_matmul_algo_config_attribute_dtype(attribute))
        written = ctypes.c_size_t(0)
        lt.matmul_algo_config_get_attribute(
            self._result.ctypes.data, attribute,
            value.ctypes.data, value.nbytes, ctypes.addressof(written),
        )  # fmt: skip
        return int(value[0])


def _name(enum: Any, value: int) -> str:
    """`128x64` for `TILE_128x64`; the number itself where the library is newer than its names."""
    known = enum._value2member_map_.get(value)
    return str(value) if known is None else known.name.partition("_")[2]


class _Plan:
    """cuBLASLt's descriptors for one product, freed with the last algorithm that uses them."""

    def __init__(self, gemm: Gemm, device: torch.device) -> None:
        self.gemm = gemm
        self.handle = _handle(device.index)
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self.operation: int = lt.matmul_desc_create(ComputeType.COMPUTE_32F, R_32F)
        self._free_with_plan(lt.matmul_desc_destroy, self.operation)
        # A column-major library sees each operand transposed: out.T = b.T @ a.T.
        _set(
            lt.matmul_desc_set_attribute, lt.get_matmul_desc_attribute_dtype, self.operation,
            {
                lt.MatmulDescAttribute.TRANSA: int(gemm.b.transposed),
                lt.MatmulDescAttribute.TRANSB: int(gemm.a.transposed),
            }.items(),
        )  # fmt: skip
        self.b = self._layout(gemm, gemm.b, gemm.k, gemm.n)
        self.a = self._layout(gemm, gemm.a, gemm.m, gemm.k)
        self.out = self._layout(gemm, gemm.out, gemm.m, gemm.n)
        self.preference: int = lt.matmul_preference_create()
        self._free_with_plan(lt.matmul_preference_destroy, self.preference)
        wanted = lt.MatmulPreferenceAttribute
        _set(
            lt.matmul_preference_set_attribute, lt.get_matmul_preference_attribute_dtype,
            self.preference,
            {
                wanted.MAX_WORKSPACE_BYTES: WORKSPACE_BYTES,
                wanted.REDUCTION_SCHEME_MASK: int(lt.ReductionScheme.COMPUTE_TYPE),
                wanted.MIN_ALIGNMENT_A_BYTES: gemm.b.align_bytes,
                wanted.MIN_ALIGNMENT_B_BYTES: gemm.a.align_bytes,
                wanted.MIN_ALIGNMENT_C_BYTES: gemm.out.align_bytes,
                wanted.MIN_ALIGNMENT_D_BYTES: gemm.out.align_bytes,
            }.items(),
        )  # fmt: skip

    def _layout(self, gemm: Gemm, matrix: Matrix, rows: int, columns: int) -> int:
        """Describe a matrix of `rows` x `columns`; the library's columns are its stored rows."""
        stored = (rows, columns) if matrix.transposed else (columns, rows)
        layout: int = lt.matrix_layout_create(CUDA_TYPES[gemm.dtype], *stored, matrix.ld)
        self._free_with_plan(lt.matrix_layout_destroy, layout)
        _set(
            lt.matrix_layout_set_attribute, lt.get_matrix_layout_attribute_dtype, layout,
            {
                lt.MatrixLayoutAttribute.BATCH_COUNT: gemm.batch,
                lt.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET: matrix.stride,
            }.items(),
        )  # fmt: skip
        return layout

    def _free_with_plan(self, destroy: Any, descriptor: int) -> None:
        weakref.finalize(self, destroy, descriptor).atexit = False


def _set(write: Any, dtype_of: Any, target: int, values: Iterable[tuple[int, int]]) -> None:
    for attribute, number in values:
        value = np.array([number], dtype=dtype_of(attribute))
        write(target, attribute, value.ctypes.data, value.nbytes)


@functools.cache
def _handle(device: int) -> int:
    """Make a device's handle; it lives as long as the process."""
    with torch.cuda.device(device):
        handle: int = lt.create()
    return handle
