"""One function over many items, in several places at a time."""

import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Place = TypeVar("Place")
Item = TypeVar("Item")
Result = TypeVar("Result")


def map_over(
    places: Sequence[Place], function: Callable[[Place, Item], Result], items: Iterable[Item]
) -> list[Result]:
    """Call `function(place, item)` for each item, on whichever place (a worker, say) is idle.

    Returns:
        The results, in the order of the items.
    """
    idle: queue.SimpleQueue[Place] = queue.SimpleQueue()
    for place in places:
        idle.put(place)

    def run(item: Item) -> Result:
        place = idle.get()
        try:
            return function(place, item)
        finally:
            idle.put(place)

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(run, items))
