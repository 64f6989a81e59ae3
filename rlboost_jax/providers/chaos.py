"""Chaos: removals and returns of capacity at exponential times, drawn from a seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlboost_jax.settings.fleet_config import ChaosConfig

ChaosKind = Literal["kill", "terminate", "join"]


@dataclass(frozen=True)
class ChaosEvent:
    seconds: float  # wall time since the beginning
    kind: ChaosKind


def chaos_events(settings: ChaosConfig) -> Iterator[ChaosEvent]:
    """Yield events in time order, without end; none if chaos is off or every rate is 0.

    The three Poisson processes are drawn as one of their summed rate whose events are then
    given a kind. What an event means where nothing is left to remove, or nothing was lost,
    is for the market to say.
    """
    rates: dict[ChaosKind, float] = {
        "kill": settings.kills_per_minute / 60,
        "terminate": settings.terms_per_minute / 60,
        "join": settings.joins_per_minute / 60,
    }
    total = sum(rates.values())
    if not settings.enabled or total <= 0:
        return
    kinds = list(rates)
    bounds = np.cumsum([rates[kind] for kind in kinds]) / total
    random = np.random.default_rng(settings.seed)
    seconds = 0.0
    while True:
        seconds += random.exponential(1 / total)
        place = int(np.searchsorted(bounds, random.random(), side="right"))
        yield ChaosEvent(seconds, kinds[min(place, len(kinds) - 1)])
