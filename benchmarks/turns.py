"""Calls that are timed in turns, so that a machine that slows down slows all of them."""

import statistics
import time
from collections.abc import Callable, Mapping

import jax

Calls = Mapping[str, Callable[[], object]]
Clock = Callable[[], float]


def take_turns(
    calls: Calls, rounds: int, *, uncounted: int = 1, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every call, results computed, in every round that counts.

    Args:
        uncounted: rounds before those, which compile and warm up.
        clock: in seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(uncounted + rounds):
        for name, call in calls.items():
            since = clock()
            jax.block_until_ready(call())
            seconds[name].append(clock() - since)
    return {name: times[uncounted:] for name, times in seconds.items()}


def median_seconds(
    calls: Calls, rounds: int, *, uncounted: int = 1, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Median seconds of each call; the calls take turns."""
    seconds = take_turns(calls, rounds, uncounted=uncounted, clock=clock)
    return {name: statistics.median(times) for name, times in seconds.items()}
