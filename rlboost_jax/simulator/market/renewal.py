"""Interrupted Poisson arrivals, fitted to the gaps between them.

Arrivals at rate λ while the process is on, none while it is off, both for exponential times.
Its gaps are independent and hyperexponential: of two exponential laws of rates μ₁ and μ₂, the
first with probability p, where

    λ = p μ₁ + (1 - p) μ₂,    1 / off = μ₁ μ₂ / λ,    1 / on = μ₁ + μ₂ - λ - 1 / off.

Source: Kuczura 1973, "The interrupted Poisson process as an overflow process", Bell System
Technical Journal 52(3), section 2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDS = 500  # of expectation and maximization, at most
TOLERANCE = 1e-9  # of the log-likelihood, relative, at which it has converged
ALMOST = 1e-12  # no law gets a share of nothing
FEWEST = 8  # gaps: of fewer no second law can be distinguished from the first

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class InterruptedArrivals:
    rate: float  # of arrivals while on, per hour
    on: float  # mean hours
    off: float  # mean hours


def interrupted(gaps: Sequence[float] | Floats, last: float) -> InterruptedArrivals | None:
    """Fit the most likely process; None where a plain Poisson process explains the gaps as well.

    It has two parameters more, so its log-likelihood must exceed the other's by log(n): the
    Bayesian information criterion (Schwarz 1978).

    Args:
        gaps: in hours, positive.
        last: hours without an arrival at the end, of a gap that was cut off.
    """
    whole = np.asarray(gaps, np.float64)
    if len(whole) < FEWEST:
        return None
    rate = len(whole) / (whole.sum() + last)
    plain = len(whole) * math.log(rate) - rate * (whole.sum() + last)
    share, rates, likelihood = _hyperexponential(whole, last)
    if likelihood - plain <= math.log(len(whole)):
        return None
    on_rate = share * rates[0] + (1 - share) * rates[1]
    ends = rates[0] * rates[1] / on_rate
    begins = rates[0] + rates[1] - on_rate - ends
    if begins <= 0:  # both laws are one
        return None
    return InterruptedArrivals(rate=float(on_rate), on=float(1 / begins), off=float(1 / ends))


def _hyperexponential(whole: Floats, last: float) -> tuple[float, tuple[float, float], float]:
    """Fit (p, (μ₁, μ₂), log-likelihood) by expectation maximization.

    The cut-off gap has the laws' survival functions in place of their densities, and no end of
    its own: it adds to the time of each law and not to its count.
    """
    share, first, second = 0.9, 2.0 / whole.mean(), 0.2 / whole.mean()
    before = -math.inf
    for _ in range(ROUNDS):
        fast = math.log(share * first) - first * whole
        slow = math.log((1 - share) * second) - second * whole
        fast_last, slow_last = math.log(share) - first * last, math.log(1 - share) - second * last
        ended, open_ = np.logaddexp(fast, slow), np.logaddexp(fast_last, slow_last)
        likelihood = float(ended.sum() + open_)
        if likelihood - before <= TOLERANCE * abs(likelihood):
            break
        before = likelihood
        own, own_last = np.exp(fast - ended), math.exp(fast_last - open_)
        share = min((own.sum() + own_last) / (len(whole) + 1), 1 - ALMOST)
        first = own.sum() / ((own * whole).sum() + own_last * last)
        second = (1 - own).sum() / (((1 - own) * whole).sum() + (1 - own_last) * last)
    return share, (float(first), float(second)), likelihood
