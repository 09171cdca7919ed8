"""The few CUDA driver calls that l2tune makes, with errors by code.

What decided between the libraries (`scripts/gpu/launch_cost` measures it again): cupy loads a
module as fast as the driver binding does and keeps it alive with its functions, so cupy loads. A
launch through cupy's `Function` costs more host time than `cuLaunchKernelEx` on a prepared
parameter block, and cannot carry a cluster size or programmatic dependent launch, so
`cuda-bindings` launches. Tensor maps can be encoded only by the driver.
"""

import ctypes
import time
from typing import Any

from cuda.bindings import driver

from l2tune.errors import InfrastructureError
from l2tune.spec.geometry import LaunchGeometry, MapGeometry

TENSOR_MAP_BYTES = 128
_CONFIG_BYTES, _ATTRIBUTE_BYTES = 56, 72
_SUCCESS = driver.CUresult.CUDA_SUCCESS
_NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY
_INVALID_CONTEXT = driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
_SWIZZLE = {
    0: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}
_PROMOTION = {
    0: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
    64: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    128: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    256: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
}
_TENSOR_MAP_DTYPE = {
    "float16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "bfloat16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
}


class LaunchRefusedError(Exception):
    """The driver would not load or start a kernel: its resources or its launch data are wrong.

    Attributes:
        code: The driver's `CUresult`.
    """

    def __init__(self, where: str, code: Any) -> None:
        super().__init__(f"{where}: {code.name}")
        self.code = code


class KernelDied(BaseException):  # noqa: N818  # not an Exception, see below
    """A kernel faulted or hung; this process's CUDA context is of no more use.

    Not an `Exception`, because Hypothesis re-runs a test on every Exception, and a launch into a
    dead context would only report the first fault again.
    """

    def __init__(self, what: str, *, hung: bool) -> None:
        super().__init__(what)
        self.hung = hung


def check(result: tuple[Any, ...], where: str) -> Any:
    """Unpack a binding's `(code, *values)`.

    Raises:
        LaunchRefusedError: If the code is not success.
    """
    if result[0] != _SUCCESS:
        raise LaunchRefusedError(where, result[0])
    return result[1] if len(result) == 2 else result[1:]


def make_context_current(device: int) -> None:
    """Make `device`'s primary context current in this thread, as the CUDA runtime would."""
    import torch

    torch.cuda.set_device(device)
    torch.cuda.current_stream(device).query()
    handle = check(driver.cuDeviceGet(device), "cuDeviceGet")
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(handle), "retain")), "set")


def load_module(cubin: bytes) -> Any:
    """Load a cubin into the current context.

    Raises:
        InfrastructureError: If cupy is not installed.
        LaunchRefusedError: If the driver does not take the cubin.
    """
    try:
        from cupy.cuda import driver as cupy_driver
        from cupy.cuda.function import Module
    except ImportError:
        raise InfrastructureError(
            "no cupy found; running tuned kernels needs it (pip install 'l2tune[cu13]')"
        ) from None
    module = Module()
    try:
        module.load(cubin)
    except cupy_driver.CUDADriverError as error:
        raise LaunchRefusedError("cuModuleLoadData", driver.CUresult(error.status)) from None
    return module


def allow_shared_memory(function: int, size_bytes: int) -> None:
    """Let a kernel use `size_bytes` of dynamic shared memory.

    Always asked for, not only above 48 KB: the driver's limit counts static shared memory too.
    """
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver.cuFuncSetAttribute(driver.CUfunction(function), attribute, size_bytes), "smem")


def launch_config(launch: LaunchGeometry, stream: int) -> driver.CUlaunchConfig:
    """Build what `cuLaunchKernelEx` takes."""
    attributes = []
    if max(launch.cluster) > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = launch.cluster[0]
        attribute.value.clusterDim.y = launch.cluster[1]
        attribute.value.clusterDim.z = launch.cluster[2]
        attributes.append(attribute)
    if launch.pdl:
        attribute = driver.CUlaunchAttribute()
        attribute.id = (
            driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        )
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.smem_bytes
    config.hStream = driver.CUstream(stream)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def launch_bytes(launch: LaunchGeometry) -> tuple[bytes, bytes]:
    """What `cuLaunchKernelEx` takes, as C holds it: the configuration, and its attributes."""
    config = launch_config(launch, 0)
    attributes = [ctypes.string_at(int(x.getPtr()), _ATTRIBUTE_BYTES) for x in config.attrs]
    return ctypes.string_at(int(config.getPtr()), _CONFIG_BYTES), b"".join(attributes)


def launch(config: driver.CUlaunchConfig, function: int, params_address: int, device: int) -> None:
    """Start a kernel; `params_address` points to an array of pointers to its arguments.

    Raises:
        LaunchRefusedError: If the driver refuses the launch.
    """
    code = driver.cuLaunchKernelEx(config, function, params_address, 0)[0]
    if code == _INVALID_CONTEXT:  # a thread that has done no CUDA work yet
        make_context_current(device)
        code = driver.cuLaunchKernelEx(config, function, params_address, 0)[0]
    if code != _SUCCESS:
        raise LaunchRefusedError("cuLaunchKernelEx", code)


def encode_tensor_map(described: MapGeometry, address: int, *, dtype: str) -> driver.CUtensorMap:
    """Encode a TMA descriptor; out-of-bounds elements read as zero.

    Raises:
        LaunchRefusedError: If the driver refuses the geometry (CUDA driver API, "Tensor Map Object
            Management").
    """
    rank = len(described.sizes)
    return check(
        driver.cuTensorMapEncodeTiled(
            _TENSOR_MAP_DTYPE[dtype],
            rank,
            address,
            [driver.cuuint64_t(size) for size in described.sizes],
            [driver.cuuint64_t(stride) for stride in described.strides_bytes],
            [driver.cuuint32_t(extent) for extent in described.box],
            [driver.cuuint32_t(1)] * rank,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            _SWIZZLE[described.swizzle],
            _PROMOTION[described.l2_promotion],
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        "cuTensorMapEncodeTiled",
    )


def move_tensor_map(tensor_map: driver.CUtensorMap, address: int) -> None:
    """Point a descriptor at another base address; a fraction of the cost of encoding it anew.

    Raises:
        LaunchRefusedError: If the address is not aligned to 16 bytes.
    """
    check(
        (*driver.cuTensorMapReplaceAddress(tensor_map, address), None), "cuTensorMapReplaceAddress"
    )


def wait(stream: int, *, timeout_s: float, what: str) -> None:
    """Wait until everything on `stream` is done.

    Raises:
        KernelDied: If a kernel faulted, or is not done after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    handle = driver.CUstream(stream)
    while (code := driver.cuStreamQuery(handle)[0]) == _NOT_READY:
        if time.monotonic() > deadline:
            raise KernelDied(f"{what}: not done after {timeout_s} s", hung=True)
        time.sleep(20e-6)
    if code != _SUCCESS:
        raise KernelDied(f"{what}: {code.name}", hung=False)


def reset_persisting_l2() -> None:
    """Give back L2 lines that were set aside as persisting, so that nothing keeps data warm.

    A GPU without such lines refuses, and has none to give back.
    """
    driver.cuCtxResetPersistingL2Cache()
