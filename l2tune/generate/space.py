"""Which instances of the seeds are worth a look for a key, best guess first.

Each family has many tunables, most combinations of them pointless; the tables here keep the
combinations that make sense on the hardware, and the cost model ranks them for the key.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from l2tune.errors import HeaderError
from l2tune.generate.fitted import Fitted
from l2tune.generate.seeds import seed_texts
from l2tune.spec.expr import cdiv
from l2tune.spec.gpu import Arch, Gpu
from l2tune.spec.header import Header, parse
from l2tune.spec.kernel import LONG_ACC, KernelSource, instantiate
from l2tune.spec.key import Dtype, GemmKey, Layout

_Values = dict[str, int]

_WGMMA_TILES = (
    # TILE_M, TILE_N, PINGPONG
    (128, 256, 0), (256, 128, 0), (256, 192, 0), (128, 192, 0), (128, 128, 0), (128, 64, 0),
    (128, 128, 1), (64, 256, 1), (64, 192, 1), (64, 128, 1), (128, 64, 1), (64, 64, 1), (64, 32, 1),
    (64, 16, 1), (64, 8, 1), (128, 32, 1), (128, 192, 1), (192, 256, 0), (192, 192, 0),
    (192, 128, 0), (192, 64, 0),
)  # fmt: skip
_GROUPS = (4, 8, 16)
_WGMMA_HALF_TILES = ((256, 256), (128, 256), (256, 128), (128, 128), (256, 64), (128, 64))
_SPLIT_TILES = (
    # TILE_M, TILE_N
    (64, 8), (64, 16), (64, 32), (64, 64), (64, 96), (64, 128), (64, 192), (64, 256), (128, 32),
    (128, 64), (128, 96), (128, 128), (128, 192), (128, 256),
)  # fmt: skip
_CLUSTERS = (
    (1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 1), (3, 1, 1), (4, 1, 1), (5, 1, 1), (6, 1, 1),
    (7, 1, 1), (8, 1, 1), (2, 2, 1), (2, 1, 2), (3, 2, 1), (3, 1, 2), (4, 2, 1), (4, 1, 2),
)  # fmt: skip
"""SPLIT, ROWS, COLS. To share operands where k is split did not pay on 24 small shapes of an H200;
for some 2^18 outputs of a long k it was not tried."""
_WIDEST_FLIPPED = 64
"""Columns of a tile of the transposed product."""
_STORES_SPLIT, _STORES = ((0, 1), (1, 1)), ((0, 1), (0, 0))
"""PUSH, BULK."""
_SPLIT_STAGES = (12, 10, 8, 7, 6, 5, 4, 3, 2)
_WGMMA_STREAMK_TILES = (
    # TILE_M, TILE_N
    (128, 256), (256, 128), (128, 192), (64, 256), (128, 128), (64, 192), (128, 96), (128, 64),
    (64, 128), (64, 96), (64, 64), (128, 32), (64, 32),
)  # fmt: skip
_JOIN_STEPS = 8
"""Steps over k that a block takes in about the time that it takes to join tiles."""
_MMA_TILES = (
    # TILE_M, TILE_N, TILE_K, WARPS_M, WARPS_N, STAGES
    (128, 256, 32, 2, 4, 4), (256, 128, 32, 4, 2, 4), (128, 128, 32, 2, 2, 5),
    (128, 128, 64, 2, 2, 3), (128, 128, 64, 2, 4, 3), (128, 64, 64, 2, 2, 4),
    (64, 128, 64, 2, 2, 4), (64, 64, 64, 2, 2, 4), (64, 64, 128, 2, 2, 3), (64, 32, 128, 2, 2, 4),
    (32, 64, 128, 2, 2, 4), (32, 32, 128, 2, 2, 4), (32, 32, 128, 2, 2, 3), (16, 64, 128, 1, 4, 4),
    (16, 128, 64, 1, 4, 4), (64, 16, 128, 4, 1, 4), (16, 32, 128, 1, 2, 4), (64, 16, 64, 4, 1, 5),
    (64, 16, 64, 2, 1, 5), (16, 64, 64, 1, 4, 5), (16, 64, 64, 1, 2, 5), (64, 32, 64, 2, 2, 5),
    (64, 32, 64, 4, 1, 5), (32, 64, 64, 2, 2, 5), (32, 32, 64, 2, 2, 5), (32, 16, 128, 2, 1, 4),
)  # fmt: skip
_STREAMK_TILES = (
    # TILE_M, TILE_N, TILE_K, WARPS_M, WARPS_N, STAGES, BLOCKS
    (128, 128, 64, 2, 4, 3, 1), (128, 128, 32, 2, 4, 4, 1), (128, 64, 64, 2, 2, 4, 1),
    (64, 128, 64, 2, 2, 4, 1), (128, 64, 32, 2, 2, 4, 2), (64, 128, 32, 2, 2, 4, 2),
    (64, 64, 64, 2, 2, 5, 1), (64, 64, 64, 2, 2, 4, 2), (64, 32, 64, 2, 2, 5, 2),
    (32, 64, 64, 2, 2, 5, 2), (32, 32, 64, 2, 2, 5, 2),
)  # fmt: skip
_SKINNY_TILES = (
    # the larger of TILE_M and TILE_N, TILE_K
    (32, 256), (32, 512), (32, 1024), (64, 128), (64, 256), (64, 512), (128, 64), (128, 128),
    (128, 256),
)  # fmt: skip
_TRITON_TILES = (
    # BLOCK_M, BLOCK_N, BLOCK_K, NUM_WARPS, NUM_STAGES
    (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4),
    (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 256, 64, 4, 4), (64, 64, 64, 4, 5),
    (64, 64, 128, 4, 4), (64, 32, 64, 4, 5), (32, 64, 64, 4, 5), (64, 32, 128, 4, 4),
    (64, 16, 64, 4, 6), (64, 16, 128, 4, 4), (32, 32, 128, 4, 4), (16, 64, 128, 4, 4),
    (16, 128, 128, 4, 3), (16, 32, 128, 2, 5), (16, 64, 64, 2, 6),
)  # fmt: skip
_SURE, _SURE_OF_OTHERS = {"triton/matmul": 5, "sm80/naive": 0, "sm80/tiled": 0}, 2
"""How many instances of a seed are timed, however bad their guesses."""
_SPLITS = (1, 2, 4, 8, 16, 32)
_SKINNY_SPLITS = (1, 2, 4, 8)


def candidates(key: GemmKey, *, per_family: int = 16) -> list[KernelSource]:
    """Instances of every seed family that admit `key`, the likely best of each family first.

    Args:
        key: What to compute.
        per_family: How many instances of each tiled family to return at most.

    Returns:
        Unflattened kernel files.
    """
    found: list[KernelSource] = []
    for seed_id in _seeds_for(key):
        guessed = itertools.islice(_guessed(seed_id, key, Fitted()), per_family)
        found += [source for _, source in guessed]
    return found


def shortlist(key: GemmKey, fitted: Fitted, *, count: int) -> list[KernelSource]:
    """The instances of all families that are worth timing for `key`, the best guess first.

    Args:
        key: What to compute.
        fitted: Ranks instances across families.
        count: How many to return; more only where there are so many families, as each one's best
            guesses are among them, and of Triton's some more: its best is a baseline.

    Returns:
        Unflattened kernel files.
    """
    sure: list[tuple[float, KernelSource]] = []
    others: list[tuple[float, KernelSource]] = []
    for seed_id in _seeds_for(key):
        guessed = _guessed(seed_id, key, fitted)
        sure += itertools.islice(guessed, _SURE.get(seed_id, _SURE_OF_OTHERS))
        others += itertools.islice(guessed, count)
    others.sort(key=_guess)
    chosen = sure + others[: max(0, count - len(sure))]
    return [source for _, source in sorted(chosen, key=_guess)]


def source_of(seed_id: str, values: Mapping[str, int], key: GemmKey) -> KernelSource | None:
    """An instance of a seed for a key's target, dtype and layout; None where it does not serve it.

    Raises:
        KeyError: If there is no such seed.
    """
    arch = key.gpu.arch or "sm_80"
    source = _instance(seed_id, tuple(values.items()), arch, key.dtype, key.layout)
    return source if source is not None and source.serves(key) else None


def completed(seed_id: str, values: Mapping[str, int]) -> _Values | None:
    """Tunables of an instance as the seed has them now; None if it is none of this seed's.

    What has become a tunable since has the first of its values, which is what it was before.
    """
    tune = _seeds()[seed_id][1].tune if seed_id in _seeds() else None
    if tune is None or not set(values) <= set(tune):
        return None
    first = {name: v[0] if isinstance(v, tuple) else v for name, v in tune.items()}
    return {name: values.get(name, value) for name, value in first.items()}


def fit(measured: Iterable[tuple[str, Mapping[str, int], GemmKey, float]]) -> Fitted:
    """The model fitted to measurements of instances, as the seeds have them now.

    Args:
        measured: Seed, tunables, product, microseconds; what is of no seed's instance is left out.
    """
    return Fitted(
        (seed_id, values, key, us)
        for seed_id, found, key, us in measured
        if (values := completed(seed_id, found)) is not None
    )


@functools.lru_cache(maxsize=8192)
def _instance(
    seed_id: str, values: tuple[tuple[str, int], ...], arch: Arch, dtype: Dtype, layout: Layout
) -> KernelSource | None:
    text, _ = _seeds()[seed_id]
    try:
        settled = instantiate(text, dict(values))
        return KernelSource(text=settled, arch=arch, dtype=dtype, layout=layout)
    except HeaderError:  # the seed does not offer this dtype, layout or value
        return None


@functools.cache
def _seeds() -> dict[str, tuple[str, Header]]:
    return {seed_id: (text, parse(text)[1]) for seed_id, text in seed_texts().items()}


def _seeds_for(key: GemmKey) -> list[str]:
    """Those for the key's target that sum in the type that it asks for."""
    return [
        name
        for name, (_, header) in _seeds().items()
        if key.gpu.arch in header.arch and LONG_ACC[header.acc] == key.acc
    ]


def _guessed(seed_id: str, key: GemmKey, fitted: Fitted) -> Iterator[tuple[float, KernelSource]]:
    """A seed's instances that admit `key`, the best guess first; each is made when asked for."""
    settings = _SETTINGS.get(seed_id)
    allowed = [
        values
        for values in (settings(key) if settings else [])
        if _is_allowed(seed_id, tuple(values.items()), key.gpu)
    ]
    guesses = fitted.estimates_us(seed_id, allowed, key)
    for guess_us, values in sorted(zip(guesses, allowed, strict=True), key=lambda pair: pair[0]):
        source = source_of(seed_id, values, key)
        if source is not None:
            yield guess_us, source


@functools.lru_cache(maxsize=8192)
def _is_allowed(seed_id: str, values: tuple[tuple[str, int], ...], gpu: Gpu) -> bool:
    """Whether the seed's contract has such an instance for the GPU."""
    names = {**dict(values), "smem_limit": gpu.smem_limit_bytes, "sms": gpu.sms}
    return all(condition(names) for condition in _seeds()[seed_id][1].where)


def _guess(pair: tuple[float, KernelSource]) -> float:
    return pair[0]


def _is_useful(group: int, m: int, tile_m: int) -> bool:
    """Groups of rows of tiles matter where the operands of a wave do not fit the L2."""
    return group == 8 or cdiv(m, tile_m) >= 2 * group


def _wgmma(key: GemmKey) -> Iterator[_Values]:
    for (tile_m, tile_n, pingpong), cluster, group in itertools.product(
        _WGMMA_TILES, (1, 2), _GROUPS
    ):
        if not _is_useful(group, key.m, tile_m):
            continue
        consumers = 3 if tile_m == 192 else 2
        room = key.gpu.smem_limit_bytes - 2048 - 16384 * consumers
        stages = min(8, room // (128 * (tile_m + cdiv(tile_n, 64) * 64)))
        if stages >= 2:
            yield {
                "TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": 64, "STAGES": stages,
                "CLUSTER": cluster, "CONSUMERS": consumers, "PINGPONG": pingpong, "GROUP": group,
            }  # fmt: skip


def _wgmma_half(key: GemmKey) -> Iterator[_Values]:
    for (tile_m, tile_n), cluster, group in itertools.product(_WGMMA_HALF_TILES, (1, 2), _GROUPS):
        if not _is_useful(group, key.m, tile_m):
            continue
        stages = min(8, (key.gpu.smem_limit_bytes - 34816) // (128 * (tile_m + tile_n)))
        yield {
            "TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": 64, "STAGES": stages,
            "CLUSTER": cluster, "GROUP": group,
        }  # fmt: skip


def _wgmma_split(key: GemmKey) -> Iterator[_Values]:
    """A few waves of blocks at most; rings as deep as one block, or two, a multiprocessor allow."""
    for (tile_m, tile_n), (split, rows, cols), flip in itertools.product(
        _SPLIT_TILES, _CLUSTERS, (0, 1)
    ):
        if flip and tile_n > _WIDEST_FLIPPED:
            continue
        m, n = (key.n, key.m) if flip else (key.m, key.n)
        tiles_m, tiles_n = cdiv(m, tile_m), cdiv(n, tile_n)
        blocks, steps = tiles_m * tiles_n * key.batch * split, cdiv(cdiv(key.k, 64), split)
        if tiles_m < rows or tiles_n < cols or blocks > 4 * key.gpu.sms:
            continue
        if split > 1 and (steps < 2 or blocks > 2 * key.gpu.sms):
            continue
        slot = 128 * (tile_m + cdiv(tile_n, 64) * 64)
        residents = (1, 2) if 2 * blocks > key.gpu.sms else (1,)
        staged = split == 1 and not flip and tile_n % 64 == 0
        for push, bulk in _STORES_SPLIT if split > 1 else _STORES if staged else [(0, 1)]:
            beside = push * (split - 1) * cdiv(tile_n, 8 * split) * 32 * tile_m
            rooms = [key.gpu.smem_limit_bytes // resident - 4096 - beside for resident in residents]
            depths = [min(room // slot, max(2, steps)) for room in rooms]
            for stages in {next((s for s in _SPLIT_STAGES if s <= depth), 0) for depth in depths}:
                if stages:
                    yield {
                        "TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": 64, "STAGES": stages,
                        "SPLIT": split, "ROWS": rows, "COLS": cols, "PUSH": push, "FLIP": flip,
                        "BULK": bulk,
                    }  # fmt: skip


def _wgmma_streamk(key: GemmKey) -> Iterator[_Values]:
    """Where what idles in the last wave of tiles is worth more than to share it out."""
    steps, sms = cdiv(key.k, 64), key.gpu.sms
    for tile_m, tile_n in _WGMMA_STREAMK_TILES:
        tiles = cdiv(key.m, tile_m) * cdiv(key.n, tile_n) * key.batch
        idle = cdiv(tiles, sms) * sms - tiles
        if steps < 8 or idle * steps < _JOIN_STEPS * sms:
            continue
        room = key.gpu.smem_limit_bytes - 2048 - 256 * min(tile_m, 128)
        depth = room // (128 * (tile_m + cdiv(tile_n, 64) * 64))
        stages = next(s for s in _SPLIT_STAGES[1:] if s <= max(2, depth))
        for shared, group in itertools.product((1, 2), (4, 8)) if tiles > sms else [(0, 8)]:
            yield {
                "TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": 64, "STAGES": stages,
                "SHARED": shared, "GROUP": group,
            }  # fmt: skip


def _mma(key: GemmKey) -> Iterator[_Values]:
    for (tile_m, tile_n, tile_k, warps_m, warps_n, stages), split in itertools.product(
        _MMA_TILES, _useful_splits(key)
    ):
        yield {
            "TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": tile_k, "WARPS_M": warps_m,
            "WARPS_N": warps_n, "STAGES": stages, "SPLIT": split, "GROUP": 8,
        }  # fmt: skip


def _streamk(key: GemmKey) -> Iterator[_Values]:
    """Where tiles are so few that the last wave of them counts, and each has steps to share.

    Only for GPUs before Hopper, on which `wgmma` is out of its reach.
    """
    if key.gpu.arch != "sm_80":
        return
    for tile_m, tile_n, tile_k, warps_m, warps_n, stages, blocks in _STREAMK_TILES:
        tiles = cdiv(key.m, tile_m) * cdiv(key.n, tile_n) * key.batch
        if tiles > 4 * blocks * key.gpu.sms or key.k < 4 * tile_k:
            continue
        yield {
            "TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": tile_k, "WARPS_M": warps_m,
            "WARPS_N": warps_n, "STAGES": stages, "BLOCKS": blocks, "GROUP": 8,
        }  # fmt: skip


def _skinny(key: GemmKey) -> Iterator[_Values]:
    """Up to 8 rows or columns; more are work for tensor cores."""
    few, many = sorted((key.m, key.n))
    if few > 8:
        return
    height = next(size for size in (1, 2, 4, 8) if size >= few)
    for (width, tile_k), split in itertools.product(_SKINNY_TILES, _SKINNY_SPLITS):
        fills = cdiv(many, width) * key.batch >= key.gpu.sms
        if split > 1 and (fills or key.k < split * tile_k):
            continue
        tile_m, tile_n = (height, width) if key.m <= key.n else (width, height)
        yield {"TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": tile_k, "SPLIT": split}


def _triton(key: GemmKey) -> Iterator[_Values]:
    vector = 8 if key.align >= 16 else 1
    for (block_m, block_n, block_k, warps, stages), split in itertools.product(
        _TRITON_TILES, _useful_splits(key)
    ):
        for persistent in (0, 1) if split == 1 and key.m * key.n >= 1 << 22 else (0,):
            yield {
                "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8,
                "SPLIT": split, "PERSISTENT": persistent, "VECTOR": vector,
                "EVEN_K": int(key.k % block_k == 0), "NUM_WARPS": warps, "NUM_STAGES": stages,
            }  # fmt: skip


def _useful_splits(key: GemmKey) -> tuple[int, ...]:
    """Splitting pays only where 64x64 tiles leave multiprocessors idle and k is long."""
    tiles = cdiv(key.m, 64) * cdiv(key.n, 64) * key.batch
    return tuple(s for s in _SPLITS if s == 1 or (tiles < 4 * key.gpu.sms and key.k >= 128 * s))


_SETTINGS: dict[str, Callable[[GemmKey], Iterable[_Values]]] = {
    "sm80/naive": lambda key: [{}],
    "sm80/tiled": lambda key: [{}],
    "sm90a/wgmma_persistent": _wgmma,
    "sm90a/wgmma_half": _wgmma_half,
    "sm90a/wgmma_split": _wgmma_split,
    "sm90a/wgmma_streamk": _wgmma_streamk,
    "sm80/mma_multistage": _mma,
    "sm80/mma_streamk": _streamk,
    "sm80/skinny": _skinny,
    "triton/matmul": _triton,
}
