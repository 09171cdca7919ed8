"""One function over many items, on several worker processes at a time."""

import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from l2tune.runtime.worker import Worker

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_over(
    workers: Sequence[Worker], function: Callable[[Worker, Item], Result], items: Iterable[Item]
) -> list[Result]:
    """Call `function(worker, item)` for each item, on whichever worker is idle.

    Returns:
        The results, in the order of the items.
    """
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def run(item: Item) -> Result:
        worker = idle.get()
        try:
            return function(worker, item)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(run, items))
