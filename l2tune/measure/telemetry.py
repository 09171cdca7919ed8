"""What NVML says of the GPU while it is being timed.

Optional: without `nvidia-ml-py`, or where NVML does not know the device (a MIG slice), there is
nothing to read, and clock and power are 0.
"""

import importlib
import statistics
from typing import Any

import torch


class Telemetry:
    """Samples of the current device.

    Attributes:
        clocks_mhz: Multiprocessor clock, one for each sample.
        powers_w: Board power, likewise.
    """

    def __init__(self) -> None:
        """Find the current device in NVML."""
        self.clocks_mhz: list[float] = []
        self.powers_w: list[float] = []
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            self._nvml = None
            return
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        try:
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(
                f"GPU-{str(uuid).removeprefix('GPU-')}"
            )
        except self._nvml.NVMLError:
            self._nvml = None

    def sample(self) -> None:
        """Read both figures once."""
        if self._nvml is None:
            return
        try:
            clock = self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)
            power_mw = self._nvml.nvmlDeviceGetPowerUsage(self._handle)
        except self._nvml.NVMLError:
            self._nvml = None  # not on this device: do not ask again
            return
        self.clocks_mhz.append(float(clock))
        self.powers_w.append(power_mw / 1000.0)

    @property
    def clock_mhz(self) -> float:
        """Median clock, 0 without samples."""
        return statistics.median(self.clocks_mhz or [0.0])

    @property
    def power_w(self) -> float:
        """Median power, 0 without samples."""
        return statistics.median(self.powers_w or [0.0])
