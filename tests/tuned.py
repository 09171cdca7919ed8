"""Records of small made kernels whose times follow a rule, for tests of what is fitted to them."""

import functools
import itertools
from collections.abc import Callable

from samples import LAUNCH, TOOLS, cuda_file, interval, timing

from l2tune.generate import estimate_us
from l2tune.spec.gpu import H200
from l2tune.spec.header import Origin
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, CheckPassed, Compiled, LaunchData, Verified
from l2tune.spec.record import Record, Tools
from l2tune.spec.roofline import floor_us

FAMILY = "sm90a/wgmma_persistent"
CONTRACT = f"""\
id       = "{FAMILY}"
arch     = ["sm_90a"]
dtype    = ["f16", "bf16"]
layout   = ["nn", "nt", "tn", "tt"]
requires = ["align >= 16", "n % {{multiple}} == 0"]
"""
OTHERS = "STAGES = 4\nCLUSTER = 1\nCONSUMERS = 2\nPINGPONG = 0\nGROUP = 8\n"
SIZES = (128, 256, 1024, 4096)
Rule = Callable[[GemmKey], float]


@functools.cache
def compiled(tile_n: int, multiple: int = 8) -> Compiled:
    """An instance with tiles of 128 x `tile_n`; nobody runs it."""
    tune = f"[tune]\nTILE_M = 128\nTILE_N = {tile_n}\nTILE_K = 64\n{OTHERS}"
    text = cuda_file(CONTRACT.format(multiple=multiple) + tune, LAUNCH)
    source = KernelSource(text=text, arch="sm_90a")
    return Compiled(
        source=source, cubins=("0" * 64,), launches=(LaunchData(kernel="gemm"),), resources={},
        compiler=TOOLS.compiler,
    )  # fmt: skip


def guess_us(kernel: Compiled, key: GemmKey) -> float:
    """What the cost model says of it."""
    return estimate_us(kernel.source.header.id, kernel.source.tunables, key)


def record(
    key: GemmKey, kernel: Compiled, us: float, torch_us: float, tools: Tools = TOOLS
) -> Record:
    """A record of these times."""
    proof = Verified(
        key=key, compiled=kernel, checks=(CheckPassed(check="values", examples=1, seed=0),)
    )
    timed = timing(
        key, verified=proof, gpu=interval(us), baselines={"torch": interval(torch_us)},
        floor_us=floor_us(key),
    )  # fmt: skip
    return Record(
        key=key, outcome=Admitted(timing=timed, eager="kernel", graph="kernel"), origin=Origin(),
        tools=tools, created="2026-11-30",
    )  # fmt: skip


def records(
    *, off: Rule = lambda _: 1.5, torch_off: Rule = lambda _: 2.0,
    tiles: tuple[int, ...] = (64, 256), multiple: int = 8, tools: Tools = TOOLS,
) -> list[Record]:  # fmt: skip
    """One for each of 64 products: the best of the instances.

    Args:
        off: What a kernel takes, over what the cost model says.
        torch_off: What torch takes, over the floor.
        tiles: The instances' TILE_N.
        multiple: Of which n must be one.
        tools: What made them.
    """
    found = []
    for m, n, k in itertools.product(SIZES, repeat=3):
        key = GemmKey.dense(m, n, k, gpu=H200)
        best = min((compiled(t, multiple=multiple) for t in tiles), key=lambda c: guess_us(c, key))
        us, torch_us = guess_us(best, key) * off(key), floor_us(key) * torch_off(key)
        found.append(record(key, best, us, torch_us, tools))
    return found
