"""Synthetic availability traces, in the records of `settings/traces.py`, which reads real ones."""

import heapq
from collections.abc import Iterator

import numpy as np

from rlboost_jax.settings.traces import TraceRow


def synthetic_trace(
    *, machines: int, lifetime_seconds: float, gap_seconds: float, seed: int
) -> Iterator[TraceRow]:
    """Yield an endless trace of `machines` with exponential lifetimes and gaps.

    All are there at time 0. Each has its own random stream, so that the fate of one does
    not depend on how many others there are.

    Args:
        lifetime_seconds: mean time from a machine's arrival to its removal.
        gap_seconds: mean time from a removal to the machine's return.
    """
    streams = [np.random.default_rng([seed, machine]) for machine in range(machines)]
    ahead = [(0.0, machine, "add") for machine in range(machines)]
    while ahead:
        seconds, machine, action = heapq.heappop(ahead)
        yield TraceRow(milliseconds=seconds * 1000, action=action, name=f"machine{machine}")
        mean, following = (lifetime_seconds, "remove") if action == "add" else (gap_seconds, "add")
        heapq.heappush(ahead, (seconds + streams[machine].exponential(mean), machine, following))
