"""Times at which the preemptible market gives and takes machines: one sequence of events.

Trace, synthetic hazard and chaos are merged here. What an event means for the fleet (how many
instances may run, which one a nameless removal takes, that there may be nothing to take) is
the manager's decision; it has no random source of its own, so every event carries a draw.
Nothing protects the last machine: a removal may leave none.

Deterministic: the same settings and seed give the same events.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlboost_jax.providers.chaos import ChaosEvent, chaos_events
from rlboost_jax.providers.synthetic_trace import synthetic_trace
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.traces import TraceRow, read_trace

MarketKind = Literal["add", "kill", "terminate"]


@dataclass(frozen=True, kw_only=True)
class MarketEvent:
    """A machine added (`add`), or removed: at once (`kill`) or with notice (`terminate`).

    Machines of a trace have names; a trace removes without notice. Chaos has none: it takes
    some machine that is at work, and its `add` returns one that it took.
    """

    seconds: float  # wall time since the market opened
    kind: MarketKind
    name: str  # in the trace; "" from chaos
    draw: float  # uniform in [0, 1), for the choice of a victim


def initial_capacity(settings: FleetConfig) -> int:
    """Machines before the first event: a trace starts with none and adds its own.

    Without a provider nobody could use any.
    """
    if settings.trace or (settings.provider == "none" and not settings.pools):
        return 0
    return settings.most_instances


def market_events(settings: FleetConfig, *, seed: int) -> Iterator[MarketEvent]:
    """Yield all events of the market, in order; endless with chaos or the synthetic trace.

    Args:
        seed: of the synthetic trace and the draws. Chaos has its own, `chaos.seed`.

    Raises:
        ConfigError: at once, not at the first event, where `settings.trace` is unreadable.
    """
    rows: Iterator[TraceRow]
    if settings.trace == "synthetic":
        rows = synthetic_trace(
            machines=settings.most_instances,
            lifetime_seconds=settings.synthetic_lifetime_seconds,
            gap_seconds=settings.synthetic_gap_seconds,
            seed=seed,
        )
    else:
        rows = iter(read_trace(settings.trace) if settings.trace else ())
    timed_rows = ((row.milliseconds / 1000 / settings.trace_speed, row) for row in rows)
    timed_chaos = ((event.seconds, event) for event in chaos_events(settings.chaos))
    changes: Iterator[tuple[float, TraceRow | ChaosEvent]] = heapq.merge(
        timed_rows, timed_chaos, key=lambda change: change[0]
    )
    draws = np.random.default_rng([seed, settings.chaos.seed])
    return (_event(seconds, change, draws.random()) for seconds, change in changes)


def _event(seconds: float, change: TraceRow | ChaosEvent, draw: float) -> MarketEvent:
    kind: MarketKind
    if isinstance(change, TraceRow):
        kind, name = "add" if change.action == "add" else "kill", change.name
    else:
        kind, name = "add" if change.kind == "join" else change.kind, ""
    return MarketEvent(seconds=seconds, kind=kind, name=name, draw=draw)
