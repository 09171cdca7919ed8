"""The guess at an instance's time, corrected by what was measured on similar products.

The correction is the weighted mean of log(measured / guessed) over instances of the same seed, the
weights falling with the distance in octaves of sizes and tunables (kernel regression: Nadaraya
1964, Watson 1964): a wide one, and where there is something near a narrow one that is drawn to it.
Far from all measurements it is the seed's mean, and without any it is nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from l2tune.generate.cost import estimate_us
from l2tune.spec.key import GemmKey

_REACH_OCTAVES = 2.5
"""Unless another reach is asked for."""
_WIDE, _NARROW = (1.0, 0.6), (0.5, 0.2)
"""Standard deviations of the weights, in octaves of sizes and of tunables."""
_WIDE_PRIOR, _NARROW_PRIOR = 0.05, 0.01
"""The weight of what a mean is drawn to, beside a measurement of the very thing."""
_LARGEST_RESIDUAL = 1.5
_Array = npt.NDArray[np.float64]


class Fitted:
    """Guesses of all seeds, fitted to measurements on one GPU model.

    Attributes:
        products: How many products were measured.
    """

    def __init__(
        self, measured: Iterable[tuple[str, Mapping[str, int], GemmKey, float]] = ()
    ) -> None:
        """Take in measurements: seed, tunables, product, microseconds."""
        rows: dict[str, list[tuple[list[float], list[float], float]]] = {}
        keys = set[GemmKey]()
        for seed_id, values, key, us in measured:
            guess = estimate_us(seed_id, values, key)
            if math.isfinite(guess) and math.isfinite(us) and us > 0:
                residual = max(-_LARGEST_RESIDUAL, min(_LARGEST_RESIDUAL, math.log(us / guess)))
                rows.setdefault(seed_id, []).append((_place(key), _octaves(values), residual))
                keys.add(key)
        self.products = len(keys)
        self._places = {name: np.array([row[0] for row in found]) for name, found in rows.items()}
        self._residuals = {
            name: np.array([row[2] for row in found]) for name, found in rows.items()
        }
        # Few instances were measured on many products: which ones, and whose each measurement is.
        self._instances: dict[str, tuple[_Array, npt.NDArray[np.intp]]] = {
            name: np.unique([row[1] for row in found], axis=0, return_inverse=True)
            for name, found in rows.items()
        }

    def estimates_us(
        self,
        seed_id: str,
        instances: Sequence[Mapping[str, int]],
        key: GemmKey,
        *,
        reach: float = _REACH_OCTAVES,
        itself: bool = True,
    ) -> list[float]:
        """Guess the time of each instance of one seed, microseconds.

        Args:
            seed_id: The seed.
            instances: Tunables, the same ones as were measured.
            key: The product.
            reach: Products farther away than so many octaves, in any direction, say nothing.
            itself: Whether what was measured of the very product counts.

        Returns:
            Infinite where the cost model has no guess.
        """
        guesses = np.array([estimate_us(seed_id, values, key) for values in instances])
        if seed_id not in self._places or not len(instances):
            return [float(guess) for guess in guesses]
        apart = np.abs(self._places[seed_id] - np.array(_place(key)))
        farthest = apart.max(axis=1)
        near = (farthest <= reach) & ((farthest > 0) | itself)
        to_key = (apart[near] ** 2).sum(axis=1)
        residuals = self._residuals[seed_id][near]
        known, whose = self._instances[seed_id]
        to_known = _squared_distances(np.array([_octaves(values) for values in instances]), known)
        corrections: _Array = np.full(len(instances), self._residuals[seed_id].mean())
        for (of_key, of_values), prior in ((_WIDE, _WIDE_PRIOR), (_NARROW, _NARROW_PRIOR)):
            weights = np.exp(-0.5 * to_key / of_key**2)
            per_instance = np.bincount(whose[near], weights, len(known))
            residual_sums = np.bincount(whose[near], weights * residuals, len(known))
            nearness = np.exp(-0.5 * to_known / of_values**2)
            total = nearness @ per_instance + prior
            corrections = (nearness @ residual_sums + prior * corrections) / total
        return [float(guess) for guess in guesses * np.exp(corrections)]


def _squared_distances(some: _Array, others: _Array) -> _Array:
    """Of each row of `some` from each of `others`, by one matrix product."""
    squares = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None]
    distances: _Array = np.maximum(squares - 2.0 * (some @ others.T), 0.0)
    return distances


def _place(key: GemmKey) -> list[float]:
    return [math.log2(size) for size in (key.m, key.n, key.k, key.batch)]


def _octaves(values: Mapping[str, int]) -> list[float]:
    return [math.log2(max(value, 0.5)) for _, value in sorted(values.items())]
