"""Which GPU is here, and what is known of its limits."""

import functools

from l2tune.spec.gpu import Gpu


@functools.cache
def detect(device: int = 0) -> Gpu | None:
    """Return the GPU of that index, or None on a machine without one."""
    import torch

    if not torch.cuda.is_available() or device >= torch.cuda.device_count():
        return None
    found = torch.cuda.get_device_properties(device)
    return Gpu(
        name=found.name,
        capability=(found.major, found.minor),
        sms=found.multi_processor_count,
    )


def driver_version() -> str:
    """The CUDA version the driver supports, as `13.0`; `none` on a machine without a driver."""
    from cuda.bindings import driver

    try:
        code, version = driver.cuDriverGetVersion()
    except RuntimeError:  # cuda-bindings found no libcuda
        return "none"
    return f"{version // 1000}.{version % 1000 // 10}" if code == 0 else "none"
