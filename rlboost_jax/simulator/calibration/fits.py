"""Linear laws with coefficients that are not negative, and what resampling says of their errors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.simulator.streams import stream

Floats = NDArray[np.float64]

ROUNDS = 200  # of resampling
TOLERANCE = 1e-12  # of a gradient, relative to the largest product of columns and values


def non_negative(columns: Floats, values: Floats) -> Floats:
    """Minimise the squared error of columns · x = values over x ≥ 0.

    Source: Lawson and Hanson 1974, Solving Least Squares Problems, algorithm 23.10 (NNLS).

    Args:
        columns: [rows, coefficients], each column scaled as it likes.
    """
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    scaled = columns / scale
    count = scaled.shape[1]
    free = np.zeros(count, bool)
    found = np.zeros(count)
    least = TOLERANCE * max(1e-300, float(np.abs(scaled.T @ values).max(initial=0.0)))
    for _ in range(3 * count + 10):
        gradient = scaled.T @ (values - scaled @ found)
        if free.all() or np.max(gradient[~free]) <= least:
            break
        free[int(np.argmax(np.where(free, -np.inf, gradient)))] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(scaled[:, free], values, rcond=None)[0]
            if np.min(trial[free]) > 0:
                break
            falling = free & (trial <= 0)
            share = float(np.min(found[falling] / (found[falling] - trial[falling])))
            found += share * (trial - found)
            free &= found > TOLERANCE
            if not free.any():
                break
        found = trial if free.any() else np.zeros(count)
    return found / scale


def weighted(columns: Floats, seconds: Floats) -> Floats:
    """`non_negative` for times whose variance grows in proportion to the time."""
    weights = 1 / np.sqrt(np.maximum(seconds, seconds.mean() * 1e-3))
    return non_negative(columns * weights[:, None], seconds * weights)


def resampled(
    fit: Callable[[Sequence[Any]], dict[str, float]], steps: Sequence[Any], *, seed: int = 0
) -> dict[str, float]:
    """Half widths of 95 % intervals of the results of `fit`, by resampling whole steps.

    Source: Efron 1979, "Bootstrap methods"; steps are what may be taken for independent.
    """
    random = stream("bootstrap", seed)
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        drawn = [steps[i] for i in random.integers(len(steps), size=len(steps))]
        for name, value in fit(drawn).items():
            found.setdefault(name, []).append(value)
    return {
        name: float(np.diff(np.percentile(values, [2.5, 97.5]))[0] / 2)
        for name, values in found.items()
    }
