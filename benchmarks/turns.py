"""Calls that are timed in turns, so that a machine that slows down slows all of them."""

import statistics
import time
from collections.abc import Callable, Mapping

import jax

Calls = Mapping[str, Callable[[], object]]


def take_turns(calls: Calls, rounds: int, *, uncounted: int = 1) -> dict[str, list[float]]:
    """Seconds of every call, results computed, in every round that counts.

    Args:
        uncounted: rounds before those, which compile and warm up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(uncounted + rounds):
        for name, call in calls.items():
            since = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - since)
    return {name: times[uncounted:] for name, times in seconds.items()}


def median_seconds(calls: Calls, rounds: int, *, uncounted: int = 1) -> dict[str, float]:
    """Of each call, which take turns."""
    seconds = take_turns(calls, rounds, uncounted=uncounted)
    return {name: statistics.median(times) for name, times in seconds.items()}
