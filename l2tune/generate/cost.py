"""A documented guess at an instance's time, to decide what is worth measuring first.

A guess is never stored as a time and never shown as one. It counts waves of tiles, each tile's time
at the tensor cores and its traffic from the L2, the operands' traffic from memory, and the passes
that a split over k adds. The constants describe an H200 and were fitted by eye to a few dozen
measured instances; other GPUs are ranked by the same proportions.
"""

from collections.abc import Callable, Mapping

from l2tune.spec.expr import cdiv
from l2tune.spec.key import GemmKey

_FLOPS_PER_SM_US = 760e6 / 132
_MEMORY_BYTES_PER_US = 4.3e6
_L2_BYTES_PER_SM_US = 44e3
_LAUNCH_US = 2.0
_TILE_START_US = 0.9
_REDUCE_US = 1.2
_RATE = {"sm90a/wgmma_persistent": 1.0, "sm80/mma_multistage": 0.62, "triton/matmul": 0.85}


def estimate_us(seed_id: str, values: Mapping[str, int], key: GemmKey) -> float:
    """Guess the device time of a seed's instance in microseconds.

    Args:
        seed_id: The seed.
        values: Its tunables; an instance without tiles is ranked last.
        key: The product.
    """
    own = _OWN.get(seed_id)
    if own is not None:
        return own(values, key)
    tile_m = values.get("TILE_M", values.get("BLOCK_M", 0))
    tile_n = values.get("TILE_N", values.get("BLOCK_N", 0))
    if not tile_m or not tile_n:
        return float("inf")
    tile_k = values.get("TILE_K", values.get("BLOCK_K", 64))
    split, cluster = values.get("SPLIT", 1), values.get("CLUSTER", 1)
    depth = cdiv(cdiv(key.k, tile_k), split) * tile_k
    tiles = cdiv(key.m, tile_m) * cdiv(key.n, tile_n) * key.batch * split
    rate = _RATE.get(seed_id, 0.5) * _FLOPS_PER_SM_US * min(1.0, max(tile_m, 32) / 64)
    compute_us = 2.0 * tile_m * tile_n * depth / rate
    traffic_us = 2.0 * depth * (tile_m + tile_n / cluster) / _L2_BYTES_PER_SM_US
    small = tile_m * tile_n * (2 if "sm90a" in seed_id else 1)
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


def _split_us(values: Mapping[str, int], key: GemmKey) -> float:
    """The same of `wgmma_split`, whose blocks come in few waves and live on what the L2 can give.

    Fitted to 545 instances on 24 shapes of an H200: for each shape the six best guesses held one
    within 1 % of the fastest. Clusters of 4 and 8 never fill a GPU with one block a
    multiprocessor: 30 and 15 of them fit on an H200 (`cuOccupancyMaxActiveClusters`).
    """
    smem_limit = key.gpu.smem_limit_bytes
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


def _streamk_us(values: Mapping[str, int], key: GemmKey) -> float:
    """The same of `mma_streamk`, with the rates of `mma_multistage`. Not yet fitted to a GPU."""
    tile_m, tile_n, tile_k = values["TILE_M"], values["TILE_N"], values["TILE_K"]
    tiles, steps = cdiv(key.m, tile_m) * cdiv(key.n, tile_n) * key.batch, cdiv(key.k, tile_k)
    blocks = min(values["BLOCKS"] * key.gpu.sms, tiles * steps)
    together = cdiv(blocks, key.gpu.sms)
    share = tiles * steps / blocks
    rate = _RATE["sm80/mma_multistage"] * _FLOPS_PER_SM_US * min(1.0, tile_m / 64)
    compute_us = share * together * 2.0 * tile_m * tile_n * tile_k / rate
    traffic_us = share * together * 2.0 * tile_k * (tile_m + tile_n) / _L2_BYTES_PER_SM_US
    busy_us = max(compute_us, traffic_us, key.bytes_moved / _MEMORY_BYTES_PER_US)
    starts = min(2.0, 1.0 + share / steps)  # a share that begins within a tile touches two
    joined_us = 16.0 * blocks * tile_m * tile_n / _MEMORY_BYTES_PER_US
    return _LAUNCH_US + _TILE_START_US * starts + busy_us + _REDUCE_US + joined_us


_SKINNY_FMAS_PER_SM_US, _SKINNY_LATENCY_US = 0.7 * 128 * 1755, 1.0


def _skinny_us(values: Mapping[str, int], key: GemmKey) -> float:
    """The same of `skinny`, which is to read as fast as memory gives. Not yet fitted to a GPU."""
    few, many = sorted((values["TILE_M"], values["TILE_N"]))
    split, threads = values["SPLIT"], many * values["TILE_K"] // 64
    depth = cdiv(cdiv(key.k, values["TILE_K"]), split) * values["TILE_K"]
    blocks = cdiv(key.m, values["TILE_M"]) * cdiv(key.n, values["TILE_N"]) * key.batch * split
    share = cdiv(blocks, key.gpu.sms)
    resident = min(share, max(1, 512 // threads))
    in_flight = 256 * threads * resident  # two squares of 128 bytes a thread
    rate = min(_L2_BYTES_PER_SM_US, in_flight / _SKINNY_LATENCY_US)
    traffic_us = share * 2.0 * depth * (many + few) / rate
    compute_us = share * depth * many * (few + 2) / _SKINNY_FMAS_PER_SM_US
    busy_us = max(traffic_us, compute_us, key.bytes_moved / _MEMORY_BYTES_PER_US)
    reduce_us = _REDUCE_US if split > 1 else 0.0
    return _LAUNCH_US + _TILE_START_US + busy_us + reduce_us


_OWN: dict[str, Callable[[Mapping[str, int], GemmKey], float]] = {
    "sm90a/wgmma_split": _split_us,
    "sm80/mma_streamk": _streamk_us,
    "sm80/skinny": _skinny_us,
}
"""Guesses of families that the common one does not describe."""
