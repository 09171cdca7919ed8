"""Host-inclusive time: what a caller of one synchronised product waits for."""

import gc
import random
import time
from collections.abc import Callable, Mapping

import torch

from l2tune.measure.operands import OperandSets

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_WARM_UP_CALLS = 10


def call_count(launch_us: float) -> int:
    """How many calls of each path to time: fewer where the product itself takes long."""
    if launch_us < 1000.0:
        return 250
    if launch_us < 5000.0:
        return 60
    return 20 if launch_us < 100000.0 else 5


def host_samples_us(
    products: Mapping[str, Product], sets: OperandSets, *, calls: int, rng: random.Random
) -> dict[str, list[float]]:
    """Time single calls that allocate their result, in random order, each on other operands.

    Args:
        products: What is timed, by name.
        sets: The operands.
        calls: How many of each.
        rng: Decides order and operands.

    Returns:
        Microseconds of each call, by name; as long as `calls`, and in the same rounds for all.
    """
    names = list(products)
    samples: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for round_number in range(-min(_WARM_UP_CALLS, calls), calls):
            rng.shuffle(names)
            for name in names:
                taken_us = _call_us(products[name], sets, rng.randrange(sets.count))
                if round_number >= 0:
                    samples[name].append(taken_us)
    finally:
        if collecting:
            gc.enable()
    return samples


def _call_us(product: Product, sets: OperandSets, index: int) -> float:
    a, b = sets.a[index], sets.b[index]
    torch.cuda.synchronize()
    start_ns = time.perf_counter_ns()
    result = product(a, b)
    torch.cuda.synchronize()
    taken_us = (time.perf_counter_ns() - start_ns) / 1000.0
    del result  # kept until here, so that freeing it is not timed
    return taken_us
