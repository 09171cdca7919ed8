"""cuBLAS as a baseline: `cublasGemmEx` with the algorithm that the library picks itself.

It sums in float32 and may not reduce partial sums in half precision, as the kernels that it is
compared with may not. Nothing here times anything.
"""

import ctypes
import functools
from collections.abc import Callable

import nvmath.bindings.cublas as blas
import torch

from l2tune.measure.gemm_layout import gemm_of

WORKSPACE_BYTES = 32 << 20
CUDA_TYPES = {torch.float16: 2, torch.bfloat16: 14}
"""CUDA_R_16F and CUDA_R_16BF of `cudaDataType`."""

ONE, ZERO = ctypes.c_float(1), ctypes.c_float(0)

Launch = Callable[[int], None]
"""Queues one product on a stream, given by its pointer; can be captured in a CUDA graph."""


def cublas(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Launch:
    """Bind `cublasGemmEx`, or for a batch `cublasGemmStridedBatchedEx`, to `out = a @ b`.

    All products of one device share a handle and its workspace: launch them on one stream at a
    time.

    Args:
        a: As `gemm_of` has it.
        b: As `gemm_of` has it.
        out: As `gemm_of` has it.

    Raises:
        UnsupportedProblemError: If the tensors do not fit, see `gemm_of`.
    """
    gemm = gemm_of(a, b, out)
    handle, workspace = _handle(out.device.index)
    function = blas.gemm_strided_batched_ex if gemm.batch > 1 else blas.gemm_ex
    described = (
        (tensor.data_ptr(), CUDA_TYPES[gemm.dtype], matrix.ld)
        + ((matrix.stride,) if gemm.batch > 1 else ())
        for tensor, matrix in ((b, gemm.b), (a, gemm.a), (out, gemm.out))
    )
    first, second, result = described
    # A column-major library sees each operand transposed: out.T = b.T @ a.T.
    arguments = (
        *(int(gemm.b.transposed), int(gemm.a.transposed), gemm.n, gemm.m, gemm.k),
        *(ctypes.addressof(ONE), *first, *second, ctypes.addressof(ZERO), *result),
        *((gemm.batch,) if gemm.batch > 1 else ()),
        *(blas.ComputeType.COMPUTE_32F, blas.GemmAlgo.DFALT),
    )

    def launch(stream: int, _alive: tuple[torch.Tensor, ...] = (a, b, out)) -> None:
        blas.set_stream(handle, stream)  # which also drops the workspace
        blas.set_workspace(handle, workspace.data_ptr(), WORKSPACE_BYTES)
        function(handle, *arguments)

    return launch


@functools.cache
def _handle(device: int) -> tuple[int, torch.Tensor]:
    """Make a device's handle and its workspace; both live as long as the process."""
    with torch.cuda.device(device):
        handle: int = blas.create()
    blas.set_math_mode(handle, blas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION)
    return handle, torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=f"cuda:{device}")
