"""Versions of everything that a record depends on."""

import functools
import importlib.metadata

from l2tune.runtime.device import driver_version
from l2tune.spec.record import Tools
from l2tune.version import __version__


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


@functools.cache
def tools() -> Tools:
    """What is installed here, as a record notes it."""
    return Tools(
        l2tune=__version__,
        compiler=f"nvidia-cuda-nvrtc {_version('nvidia-cuda-nvrtc')}",
        driver=driver_version(),
        torch=_version("torch"),
    )
