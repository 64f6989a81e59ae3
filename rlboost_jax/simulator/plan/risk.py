"""How sure a forecast of a run is, and how likely it is to miss a limit.

Each seed is a stretch of the run, with other lengths and other losses. A run is as long as B such
stretches. If they are independent and roughly normal, what the run takes is Student's law around
B times their mean: with K seeds, of standard deviation s, it has K − 1 degrees of freedom and the
scale s √(B + B² / K), for the stretches to come and for the mean's own error. Markets that turn bad
for days are not in it, unless seeds differ as much.

Source: Geisser 1993, Predictive Inference, section 2.2 (prediction of a sum of new observations).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlboost_jax.simulator.streams import stream

DRAWS: Final = 50_000  # of Student's law


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Distribution of a whole run's seconds or dollars."""

    mean: float
    worst: float  # were all of the run as the worst seed
    half_width: float  # of the interval with 95 % of runs; 0 with one seed, which tells nothing


def spread(values: Sequence[float], *, stretches: float) -> Spread:
    """Forecast a whole run from the results of seeds.

    Args:
        values: of a whole run, by each seed's stretch of it.
        stretches: stretches that make a run; 1 or more.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Spread(mean=mean, worst=max(values), half_width=0.0)
    quantile = float(np.quantile(np.abs(_student(len(values) - 1)), 0.95))
    return Spread(
        mean=mean, worst=max(values), half_width=quantile * _scale(values, stretches=stretches)
    )


def missed(values: Sequence[float], limit: float, *, stretches: float) -> float:
    """Probability that a run takes more than the limit."""
    mean = statistics.fmean(values)
    scale = _scale(values, stretches=stretches) if len(values) > 1 else 0.0
    if scale == 0.0:
        return float(mean > limit)
    return float(np.mean(mean + scale * _student(len(values) - 1) > limit))


def _scale(values: Sequence[float], *, stretches: float) -> float:
    """Scale of Student's law for a run: `values` are of B equal stretches, deviations a B-th."""
    own = statistics.stdev(values) / stretches
    return own * math.sqrt(stretches + stretches**2 / len(values))


def _student(degrees: int) -> np.ndarray:  # type: ignore[type-arg]
    """Draw from Student's law, each draw with its negative."""
    drawn = stream("risk", 0).standard_t(degrees, DRAWS)
    return np.concatenate([drawn, -drawn])
