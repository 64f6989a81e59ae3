"""How long to wait before something is tried again."""

import math


def backoff_seconds(attempt: int, *, first: float, longest: float = math.inf) -> float:
    """The pause before the next attempt: it doubles with each one that fails.

    Args:
        attempt: how many failed before the latest; 0 gives `first`.
    """
    return min(longest, first * 2.0 ** min(attempt, 60))  # a power that stays finite
