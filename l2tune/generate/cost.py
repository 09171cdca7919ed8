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
_RATE = {"sm80/mma_multistage": 0.62, "triton/matmul": 0.85}


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


_LINE_BYTES, _STRADDLING = 128, 1.6
"""Of the L2, and what it costs a tensor map's rows of 128 bytes to start between two lines."""


def _straddling(key: GemmKey) -> tuple[float, float, float]:
    """How much more a and b take to fetch, and c to store, than where their rows start on lines."""
    problem = key.problem()
    leading = (problem.lda, problem.ldb, problem.ldc)
    a, b, c = (_STRADDLING if 2 * x % _LINE_BYTES else 1.0 for x in leading)
    return a, b, c


def _memory_us(key: GemmKey, of_c: float) -> float:
    """Reading a and b from memory once, and writing c."""
    more = (of_c - 1.0) * 2.0 * key.m * key.n * key.batch
    return (key.bytes_moved + more) / _MEMORY_BYTES_PER_US


_WGMMA_STORE_BUFFERS_BYTES = 16384.0  # of a warpgroup
_WGMMA_FLOPS_PER_SM_US, _WGMMA_LATENCY_US, _WGMMA_TURN_US = 5.2e6, 1.1, 0.5


def _wgmma_us(values: Mapping[str, int], key: GemmKey) -> float:
    """The same of `wgmma_persistent`: main loops, and what of the stores they do not hide.

    Not fitted: an H200's sustained rates, a latency of memory, and half a microsecond in which a
    block that does not play ping-pong turns from one tile to the next.
    """
    tile_m, tile_n, cluster = values["TILE_M"], values["TILE_N"], values["CLUSTER"]
    memory_per_sm = _MEMORY_BYTES_PER_US / key.gpu.sms
    of_a, of_b, of_c = _straddling(key)
    slot = 128 * (of_a * tile_m + of_b * tile_n / cluster)
    step_us = max(
        128.0 * tile_m * tile_n / _WGMMA_FLOPS_PER_SM_US,
        slot / (_SPLIT_BYTES_PER_US / key.gpu.sms),
        _WGMMA_LATENCY_US / (values["STAGES"] - 1),
    )
    main_us, store_us = cdiv(key.k, 64) * step_us, of_c * 2.0 * tile_m * tile_n / memory_per_sm
    if values["PINGPONG"]:
        tile_us = max(main_us, store_us, (main_us + store_us + _WGMMA_TURN_US) / 2)
    else:
        consumers = values.get("CONSUMERS", 2)  # of records from before there were three
        hidden_us = consumers * _WGMMA_STORE_BUFFERS_BYTES / memory_per_sm
        tile_us = max(store_us, main_us + _WGMMA_TURN_US + max(0.0, store_us - hidden_us))
    tiles = cdiv(key.m, tile_m * cluster) * cluster * cdiv(key.n, tile_n) * key.batch
    waves = cdiv(tiles, key.gpu.sms // cluster * cluster)
    tile_us *= 1.0 if values["GROUP"] == 8 else 1.01  # so that the like do not crowd out others
    busy_us = max(waves * tile_us, _memory_us(key, of_c))
    return _SPLIT_LAUNCH_US + _WGMMA_LATENCY_US + busy_us + min(store_us, 1.0)


def _wgmma_half_us(values: Mapping[str, int], key: GemmKey) -> float:
    """That of `wgmma_persistent`, whose structure it has; Hopper adds in either type as fast."""
    return _wgmma_us({**values, "PINGPONG": 0}, key)


_SPLIT_FLOPS_PER_SM_US = 3.58e6
_SPLIT_BYTES_PER_SM_US, _SPLIT_BYTES_PER_US = 67.6e3, 7.74e6
_SPLIT_LAUNCH_US, _SPLIT_WAVE_US, _SPLIT_REDUCE_US, _SPLIT_PUSH_US = 1.47, 1.70, 0.66, 0.3
_CLUSTERED = {1: 1.0, 2: 1.0, 3: 129 / 132, 5: 110 / 132, 6: 120 / 132, 7: 105 / 132}
"""Share of an H200's multiprocessors that clusters of a size can be on; of 4 and 8, 120 of 132."""


def _split_us(values: Mapping[str, int], key: GemmKey) -> float:
    """The same of `wgmma_split`, whose blocks come in few waves and live on what the L2 can give.

    Fitted to 545 instances on 24 shapes of an H200: for each shape the six best guesses held one
    within 1 % of the fastest. What PUSH saves is not fitted yet. Larger clusters never fill a GPU
    with one block a multiprocessor: of 4 and 8 blocks 30 and 15 fit on an H200
    (`cuOccupancyMaxActiveClusters`), and of other sizes what there is room for in groups of 18, 16
    and 10 multiprocessors, which those numbers tell.
    """
    smem_limit = key.gpu.smem_limit_bytes
    tile_m, tile_n, split = values["TILE_M"], values["TILE_N"], values["SPLIT"]
    rows, cols = values["ROWS"], values["COLS"]
    depth = cdiv(cdiv(key.k, 64), split) * 64
    push, flip = values.get("PUSH", 0), values.get("FLIP", 0)  # not in records from before them
    m, n = (key.n, key.m) if flip else (key.m, key.n)
    along_n = key.layout[0] == "t" if flip else key.layout[1] == "n"
    fetched_n = cdiv(tile_n, 64) * 64 if along_n else tile_n
    smem = values["STAGES"] * 128 * (tile_m + fetched_n) + 3072
    smem += push * (split - 1) * cdiv(tile_n, 8 * split) * 32 * tile_m
    resident = max(1, min(4, smem_limit // smem))
    size = split * rows * cols
    room = int(key.gpu.sms * _CLUSTERED.get(size, 10 / 11)) // size * size
    blocks = cdiv(m, tile_m) * cdiv(n, tile_n) * key.batch * split
    waves = cdiv(blocks, room * resident)
    together = resident if waves > 1 else cdiv(blocks, room)
    rate = min(_SPLIT_BYTES_PER_SM_US, _SPLIT_BYTES_PER_US / min(room, blocks))
    of_a, of_b, of_c = _straddling(key)
    of_m, of_n = (of_b, of_a) if flip else (of_a, of_b)
    traffic_us = 2.0 * depth * (of_m * tile_m / cols + of_n * fetched_n / rows) * together / rate
    compute_us = 2.0 * tile_m * tile_n * depth * together / _SPLIT_FLOPS_PER_SM_US
    tiles_us = waves * (max(traffic_us, compute_us) + _SPLIT_WAVE_US)
    reduce_us = _SPLIT_REDUCE_US - push * _SPLIT_PUSH_US if split > 1 else 0.0
    return _SPLIT_LAUNCH_US + max(tiles_us, _memory_us(key, of_c)) + reduce_us


_STREAMK_CLEAR_US, _STREAMK_STORE_US, _STREAMK_MEET_US = 1.0, 0.6, 1.5
_STREAMK_BYTES_PER_SM_US, _STREAMK_MOST_PARTS, _STREAMK_FEW_PARTS = 60e3, 16, 3


def _wgmma_streamk_us(values: Mapping[str, int], key: GemmKey) -> float:
    """The same of `wgmma_streamk`, with the rates of the two other families of `wgmma`.

    Not yet fitted to a GPU. A block's steps over k are those of its whole tiles and of its share.
    """
    tile_m, tile_n = values["TILE_M"], values["TILE_N"]
    tiles, steps = cdiv(key.m, tile_m) * cdiv(key.n, tile_n) * key.batch, cdiv(key.k, 64)
    least = cdiv(steps, _STREAMK_MOST_PARTS)
    blocks = min(key.gpu.sms, tiles * steps // least)
    waves = max(0, tiles // blocks + 1 - values["SHARED"]) if values["SHARED"] else 0
    shared = tiles - waves * blocks
    share = cdiv(shared * steps, min(blocks, shared * steps // least)) if shared else 0
    rate = _FLOPS_PER_SM_US if tile_m * tile_n >= 128 * 192 else _SPLIT_FLOPS_PER_SM_US
    of_a, of_b, of_c = _straddling(key)
    traffic_us = 128.0 * (of_a * tile_m + of_b * tile_n) / _SPLIT_BYTES_PER_SM_US
    step_us = max(128.0 * tile_m * tile_n / rate, traffic_us)
    busy_us = (waves * steps + share) * step_us + (waves + share / steps) * _STREAMK_STORE_US
    join_us = 0.0
    if share % steps:
        parts = cdiv(steps, share) + 1  # of a tile; a block writes one and reads the others
        parts = parts if parts <= _STREAMK_FEW_PARTS else 2  # or reads a share of each
        join_us = _STREAMK_MEET_US + parts * 4 * tile_m * tile_n / _STREAMK_BYTES_PER_SM_US
    busy_us = max(busy_us, _memory_us(key, of_c))
    return _SPLIT_LAUNCH_US + _STREAMK_CLEAR_US + _SPLIT_WAVE_US + busy_us + join_us


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
    "sm90a/wgmma_persistent": _wgmma_us,
    "sm90a/wgmma_half": _wgmma_half_us,
    "sm90a/wgmma_split": _split_us,
    "sm90a/wgmma_streamk": _wgmma_streamk_us,
    "sm80/mma_streamk": _streamk_us,
    "sm80/skinny": _skinny_us,
}
"""Guesses of families that the common one does not describe."""
