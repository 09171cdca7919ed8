"""What one multiprocessor holds, and does in a clock, by compute capability.

Figures of the CUDA C++ Programming Guide (tables of technical specifications and of arithmetic
instructions) and of NVIDIA's A100 and H100 architecture whitepapers, but where another source is
named. What a whole GPU does is in `roofline`.
"""

import dataclasses

from l2tune.spec.geometry import LaunchGeometry
from l2tune.spec.gpu import Gpu
from l2tune.spec.outcome import KernelResources

SCHEDULERS = 4
"""Each issues one instruction of a warp in a clock."""
SHARED_BYTES = 128
"""Through the L1 cache and shared memory, in a clock."""
L2_BYTES = 5120
"""From the L2 to all multiprocessors, in a clock: A100 whitepaper; taken for Hopper's too."""

_WARP = 32
_THREADS, _BLOCKS, _REGISTERS = 2048, 32, 65536
_RESERVED_SMEM_BYTES = 1024
_REGISTER_UNIT = 256
"""Registers of a warp come in multiples of this."""


@dataclasses.dataclass(frozen=True)
class Multiprocessor:
    """Rates of one compute capability.

    Attributes:
        fp32_lanes: Float32 operations in a clock.
        tensor_flops: Dense half-precision operations of the tensor cores in a clock.
        mma_share: Part of that which `mma.sync` reaches; only `wgmma` reaches all of Hopper's.
        latency_clocks: Of a load that neither cache holds.
    """

    fp32_lanes: int
    tensor_flops: int
    mma_share: float
    latency_clocks: int


MULTIPROCESSORS = {
    (8, 0): Multiprocessor(64, 2048, 1.0, 466),
    (9, 0): Multiprocessor(128, 4096, 0.629, 479),
}
"""`mma_share` and `latency_clocks`: Luo et al., *Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture*, arXiv:2402.13499."""


def resident_blocks(used: KernelResources, launch: LaunchGeometry, gpu: Gpu) -> int:
    """Blocks of a launch that one multiprocessor holds at a time; at least 1."""
    warps = warps_of(launch)
    registers = -(-used.registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT * warps
    smem_bytes = used.smem_static_bytes + launch.smem_bytes + _RESERVED_SMEM_BYTES
    return max(
        1,
        min(
            _BLOCKS,
            _THREADS // (warps * _WARP),
            _REGISTERS // max(1, registers),
            (gpu.smem_limit_bytes + _RESERVED_SMEM_BYTES) // smem_bytes,
        ),
    )


def warps_of(launch: LaunchGeometry) -> int:
    """Warps of one block."""
    x, y, z = launch.block
    return -(-x * y * z // _WARP)
