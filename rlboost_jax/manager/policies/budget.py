"""Limits that a budget sets."""

import math

EPSILON = 1e-9  # of an instance: prices are sums of binary fractions


def affordable(
    *, per_hour: float, joined: float, starting: int, price_per_hour: float, wanted: int
) -> int:
    """Number of the wanted instances that the budget allows to request.

    Args:
        per_hour: dollars for all preemptible instances together; 0: no limit.
        joined: dollars per hour of instances that have joined, by the prices that they announced.
        starting: instances asked for that have not joined; each counts as `price_per_hour`.
    """
    if per_hour <= 0 or price_per_hour <= 0:
        return wanted
    room = (per_hour - joined) / price_per_hour - starting
    return max(0, min(wanted, math.floor(room + EPSILON)))


def spent(*, dollars: float, most: float) -> bool:
    """Whether a run has used up its budget `most` in dollars; 0: no limit."""
    return 0 < most <= dollars
