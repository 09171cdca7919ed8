"""How well the search's model ranks instances of products it has not seen: python scripts/fit.py.

Holds 120 products of the shipped rough times back, fits to the others, to one in eight of them, and
to none, and says how often an instance within 1 % of the fastest timed one is among the first N.
"""

import math
import random
from collections import defaultdict
from collections.abc import Sequence

from l2tune.generate import Fitted, completed
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.store.pack import shipped_folder
from l2tune.store.rough import Rough, read_rough

HELD_BACK, SEED, CLOSE = 120, 0, 1.01
FIRST = (1, 2, 4, 8, 16)


def ranked(model: Fitted, timed: Sequence[Rough], key: GemmKey) -> list[float]:
    """The measured times, in the order of the model's guesses."""
    by_seed: dict[str, list[Rough]] = defaultdict(list)
    for one in timed:
        by_seed[one[0]].append(one)
    pairs: list[tuple[float, float]] = []
    for seed_id, some in by_seed.items():
        guesses = model.estimates_us(seed_id, [values for _, values, _, _ in some], key)
        pairs += zip(guesses, (us for *_, us in some), strict=True)
    return [us for _, us in sorted(pairs)]


def main() -> None:
    """Print a Markdown table."""
    by_key: dict[GemmKey, list[Rough]] = defaultdict(list)
    for one in read_rough(shipped_folder() / H200.slug, H200):
        if (values := completed(one[0], one[1])) is not None:
            by_key[one[2]].append((one[0], values, one[2], one[3]))
    held = random.Random(SEED).sample(sorted(by_key, key=str), HELD_BACK)
    seen = [key for key in by_key if key not in set(held)]
    print(f"| fitted to | {' | '.join(f'first {n}' for n in FIRST)} | the first is slower by |")
    print("| --- |" + " --- |" * (len(FIRST) + 1))
    for what, keys in (("nothing", []), ("one in eight", seen[::8]), ("all others", seen)):
        model = Fitted((s, v, k, us) for key in keys for s, v, k, us in by_key[key])
        orders = [ranked(model, by_key[key], key) for key in held]
        hits = [sum(min(o[:n]) <= CLOSE * min(o) for o in orders) / HELD_BACK for n in FIRST]
        slower = math.exp(sum(math.log(o[0] / min(o)) for o in orders) / HELD_BACK) - 1
        print(f"| {what} | {' | '.join(f'{hit:.0%}' for hit in hits)} | {slower:.1%} |")


if __name__ == "__main__":
    main()
