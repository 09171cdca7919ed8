"""How long a product must take at least, from the figures of its GPU's data sheet.

`physical_minimum_us` is what nothing can beat, and what the gate calls impossible. `floor_us` is
what a very good kernel may reach, and what reports compare with. A GPU that is not in the table has
neither, and both are 0.
"""

import dataclasses

from l2tune.spec.gpu import Gpu
from l2tune.spec.key import GemmKey

LAUNCH_US = 2.0
"""What a launch costs beside its work."""
_REACHED_FLOPS = 760 / 989.5
_REACHED_BANDWIDTH = 4.3 / 4.8
"""Shares of the data sheet reached by the best library kernels on an H200, 2026-11-30.

They were measured on no other GPU, so another GPU's `floor_us` is its data sheet scaled by them.
"""


@dataclasses.dataclass(frozen=True)
class Peak:
    """Data sheet of one GPU.

    Attributes:
        tflops: Dense half-precision tensor throughput, 1e12 operations a second.
        tb_per_s: Memory bandwidth, 1e12 bytes a second.
        l2_bytes: Size of the L2 cache.
        clock_mhz: Clock at which `tflops` holds.
    """

    tflops: float
    tb_per_s: float
    l2_bytes: int
    clock_mhz: int


PEAKS = {
    "NVIDIA H200": Peak(989.5, 4.8, 60 << 20, 1830),
    "NVIDIA H100 80GB HBM3": Peak(989.5, 3.35, 50 << 20, 1830),
    "NVIDIA A100-SXM4-80GB": Peak(312.0, 2.039, 40 << 20, 1410),
}
"""By the name that the driver reports; only the H200 was also measured."""


def physical_minimum_us(key: GemmKey) -> float:
    """Return the time in microseconds that no right kernel can go below; 0 for an unknown GPU.

    Operands may lie in the L2 and a result may stay there, so memory bandwidth bounds only the
    bytes beyond the L2's size.
    """
    peak = PEAKS.get(key.gpu.name)
    if peak is None:
        return 0.0
    compute_us = key.flops / peak.tflops * 1e-6
    memory_us = max(0, key.bytes_moved - peak.l2_bytes) / peak.tb_per_s * 1e-6
    return max(compute_us, memory_us)


def floor_us(key: GemmKey) -> float:
    """Return the time in microseconds to aim at with cold operands; 0 for an unknown GPU.

    On an H200 it is max(bytes / 4.3 TB/s, flops / 760 TFLOP/s) + 2 us.
    """
    reached = sustained(key.gpu)
    if reached is None:
        return 0.0
    compute_us = key.flops / reached.tflops * 1e-6
    memory_us = key.bytes_moved / reached.tb_per_s * 1e-6
    return max(compute_us, memory_us) + LAUNCH_US


def sustained(gpu: Gpu) -> Peak | None:
    """Return the rates that very good kernels reach on a GPU; None if it is unknown."""
    peak = PEAKS.get(gpu.name)
    if peak is None:
        return None
    return dataclasses.replace(
        peak, tflops=peak.tflops * _REACHED_FLOPS, tb_per_s=peak.tb_per_s * _REACHED_BANDWIDTH
    )
