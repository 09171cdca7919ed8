"""A documented guess at an instance's time, to decide what is worth measuring first.

A guess is never stored as a time and never shown as one. It counts waves of tiles, each tile's time
at the tensor cores and its traffic from the L2, the operands' traffic from memory, and the passes
that a split over k adds. The constants describe an H200 and were fitted by eye to a few dozen
measured instances; other GPUs are ranked by the same proportions.
"""

from l2tune.spec.expr import cdiv
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey

_FLOPS_PER_SM_US = 760e6 / 132
_MEMORY_BYTES_PER_US = 4.3e6
_L2_BYTES_PER_SM_US = 44e3
_LAUNCH_US = 2.0
_TILE_START_US = 0.9
_REDUCE_US = 1.2
_RATE = {"sm90a/wgmma_persistent": 1.0, "sm80/mma_multistage": 0.62, "triton/matmul": 0.85}


def estimate_us(source: KernelSource, key: GemmKey) -> float:
    """Guess the device time of a tiled kernel in microseconds.

    Kernels without tile tunables are ranked last.
    """
    if source.header.id == "sm90a/wgmma_split":
        return _split_us(source, key)
    values = source.tunables
    tile_m = values.get("TILE_M", values.get("BLOCK_M", 0))
    tile_n = values.get("TILE_N", values.get("BLOCK_N", 0))
    if not tile_m or not tile_n:
        return float("inf")
    tile_k = values.get("TILE_K", values.get("BLOCK_K", 64))
    split, cluster = values.get("SPLIT", 1), values.get("CLUSTER", 1)
    depth = cdiv(cdiv(key.k, tile_k), split) * tile_k
    tiles = cdiv(key.m, tile_m) * cdiv(key.n, tile_n) * key.batch * split
    rate = _RATE.get(source.header.id, 0.5) * _FLOPS_PER_SM_US * min(1.0, max(tile_m, 32) / 64)
    compute_us = 2.0 * tile_m * tile_n * depth / rate
    traffic_us = 2.0 * depth * (tile_m + tile_n / cluster) / _L2_BYTES_PER_SM_US
    small = tile_m * tile_n * (2 if "sm90a" in source.header.id else 1)
    resident = 1 if small > 8192 else 2 if small > 4096 else 3
    waves = cdiv(tiles, key.gpu.sms * resident)
    partial = min(tiles, key.gpu.sms * resident) / (key.gpu.sms * resident)
    tile_us = max(
        compute_us * max(1.0, resident * partial), traffic_us * max(1, resident * partial)
    )
    memory_us = key.bytes_moved / _MEMORY_BYTES_PER_US
    total = max(waves * tile_us, memory_us) + _TILE_START_US * min(waves, 2) + _LAUNCH_US
    if split > 1:
        total += _REDUCE_US + 8.0 * split * key.m * key.n * key.batch / _MEMORY_BYTES_PER_US
    return total


_SPLIT_FLOPS_PER_SM_US = 3.58e6
_SPLIT_BYTES_PER_SM_US, _SPLIT_BYTES_PER_US = 67.6e3, 7.74e6
_SPLIT_LAUNCH_US, _SPLIT_WAVE_US, _SPLIT_REDUCE_US = 1.47, 1.70, 0.66


def _split_us(source: KernelSource, key: GemmKey) -> float:
    """The same of `wgmma_split`, whose blocks come in few waves and live on what the L2 can give.

    Fitted to 545 instances on 24 shapes of an H200: for each shape the six best guesses held one
    within 1 % of the fastest. Clusters of 4 and 8 never fill a GPU with one block a
    multiprocessor: 30 and 15 of them fit on an H200 (`cuOccupancyMaxActiveClusters`).
    """
    values, smem_limit = source.tunables, key.gpu.smem_limit_bytes
    tile_m, tile_n, split = values["TILE_M"], values["TILE_N"], values["SPLIT"]
    rows, cols = values["ROWS"], values["COLS"]
    depth = cdiv(cdiv(key.k, 64), split) * 64
    smem = values["STAGES"] * 128 * (tile_m + cdiv(tile_n, 64) * 64) + 3072
    resident = max(1, min(4, smem_limit // smem))
    room = key.gpu.sms if split * rows * cols <= 2 else key.gpu.sms * 10 // 11
    blocks = cdiv(key.m, tile_m) * cdiv(key.n, tile_n) * key.batch * split
    waves = cdiv(blocks, room * resident)
    together = resident if waves > 1 else cdiv(blocks, room)
    rate = min(_SPLIT_BYTES_PER_SM_US, _SPLIT_BYTES_PER_US / min(room, blocks))
    traffic_us = 2.0 * depth * (tile_m / cols + tile_n / rows) * together / rate
    compute_us = 2.0 * tile_m * tile_n * depth * together / _SPLIT_FLOPS_PER_SM_US
    tiles_us = waves * (max(traffic_us, compute_us) + _SPLIT_WAVE_US)
    reduce_us = _SPLIT_REDUCE_US if split > 1 else 0.0
    return _SPLIT_LAUNCH_US + max(tiles_us, key.bytes_moved / _MEMORY_BYTES_PER_US) + reduce_us
