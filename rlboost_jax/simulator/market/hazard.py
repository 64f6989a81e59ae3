"""A synthetic market: Poisson arrivals, losses that come in batches, times without arrivals.

Each machine on loan is lost at rate 1 / lifetime. Losses come together: a loss event takes a
geometric number of machines (mean `batch_size`, as far as there are any), and comes so much
more seldom. Arrivals come one by one at the rate that keeps the mean number on loan, except in
droughts, which begin and end at exponential times; outside them arrivals are so much faster.
With batch_size 1 and no droughts the number on loan is that of an M/M/∞ queue: Poisson with
mean `machines`. Arrivals, losses and droughts have random streams of their own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rlboost_jax.settings.traces import TraceRow
from rlboost_jax.simulator.market.renewal import interrupted
from rlboost_jax.simulator.sim_config import HazardConfig
from rlboost_jax.simulator.streams import stream

HOUR = 3_600_000.0  # milliseconds


def draw(hazard: HazardConfig, *, hours: float, seed: int) -> tuple[TraceRow, ...]:
    """Draw a trace of the market's length, which begins with the mean number of machines."""
    losses, arrivals = stream("losses", seed), _arrivals(hazard, hours, seed)
    alive = [f"node{i + 1}" for i in range(round(hazard.machines))]
    named = len(alive)
    rows = [TraceRow(milliseconds=0.0, action="add", name=name) for name in alive]
    at, coming = 0.0, next(arrivals, math.inf)
    due = losses.exponential()  # machine-time until the next loss event, in mean gaps
    while True:
        rate = len(alive) / hazard.lifetime_hours / hazard.batch_size
        going = at + due / rate if rate else math.inf
        if min(coming, going) >= hours:
            return tuple(rows)
        if coming <= going:
            due -= rate * (coming - at)
            at, coming = coming, next(arrivals, math.inf)
            named += 1
            alive.append(f"node{named}")
            rows.append(TraceRow(milliseconds=at * HOUR, action="add", name=alive[-1]))
            continue
        at, due = going, losses.exponential()
        for _ in range(min(len(alive), int(losses.geometric(1 / hazard.batch_size)))):
            name = alive.pop(int(losses.integers(len(alive))))
            rows.append(TraceRow(milliseconds=at * HOUR, action="remove", name=name))


def _arrivals(hazard: HazardConfig, hours: float, seed: int) -> Iterator[float]:
    """Draw arrival times, in hours: a Poisson process without the arrivals in droughts."""
    random, turns = stream("arrivals", seed), stream("droughts", seed)
    dry, gap = hazard.drought_hours, hazard.drought_gap_hours
    rate = hazard.machines / hazard.lifetime_hours * ((gap + dry) / gap if dry else 1.0)
    begins = turns.exponential(gap) if dry else math.inf
    ends = begins + turns.exponential(dry) if dry else math.inf
    at = random.exponential(1 / rate)
    while at < hours:
        while at >= ends:
            begins = ends + turns.exponential(gap)
            ends = begins + turns.exponential(dry)
        if at < begins:
            yield at
        at += random.exponential(1 / rate)


def fit(rows: Sequence[TraceRow], *, hours: float) -> HazardConfig:
    """Fit the hazard's parameters to a trace by maximum likelihood.

    - lifetime: exponential, so machine-hours over losses. Who is still there at the end has not
      been lost by then, which is all that is known of it (right-censored): its hours count.
    - batch_size: geometric. A batch that left nobody might have been larger: it is censored too.
    - droughts: arrivals in them are those of an interrupted Poisson process, whose gaps are
      hyperexponential (`renewal.py`); the gap that the end cuts off is censored. Without
      evidence for them (Bayesian information criterion) there are none.
    - machines: mean on loan.

    Args:
        hours: how long was looked; a trace's last row is not its end.

    Raises:
        ValueError: there is no loss, or rows go on beyond `hours`.
    """
    if not 0 < hours < math.inf or any(row.milliseconds > hours * HOUR for row in rows):
        raise ValueError(f"a trace that goes on after its {hours:g} h; give its whole length")
    machine_hours, batches, emptied = _losses(rows, hours)
    if not batches:
        raise ValueError(f"a trace of {hours:g} h with 0 losses shows no lifetimes")
    moments = sorted({row.milliseconds / HOUR for row in rows if row.action == "add"} - {0.0})
    gaps = np.diff([0.0, *moments])
    found = HazardConfig(
        machines=machine_hours / hours,
        lifetime_hours=machine_hours / sum(batches),
        batch_size=_batch_size(batches, emptied),
        drought_hours=0.0,
        drought_gap_hours=0.0,
    )
    droughts = interrupted(gaps, hours - (moments[-1] if moments else 0.0))
    if droughts is None:
        return found
    return replace(found, drought_hours=droughts.off, drought_gap_hours=droughts.on)


def _losses(rows: Sequence[TraceRow], hours: float) -> tuple[float, list[int], int]:
    """Count losses: machine-hours, machines per loss, and losses that left no machine.

    Adding a machine twice, or removing an absent one, is no event.
    """
    alive: dict[str, float] = {}
    machine_hours, emptied = 0.0, 0
    batches: dict[float, int] = {}
    for row in rows:
        at = row.milliseconds / HOUR
        if row.action == "add":
            alive.setdefault(row.name, at)
        elif row.name in alive:
            machine_hours += at - alive.pop(row.name)
            batches[at] = batches.get(at, 0) + 1
            emptied += not alive
    machine_hours += sum(hours - since for since in alive.values())
    return machine_hours, list(batches.values()), emptied


def _batch_size(batches: Sequence[int], emptied: int) -> float:
    """Mean of the geometric law of a batch's size.

    Every machine lost after a batch's first was a trial that continued the batch, and every batch
    that left a machine had one that ended it. Where none did, the observed mean is a lower bound.
    """
    ended = len(batches) - emptied
    return (sum(batches) - len(batches) + ended) / ended if ended else sum(batches) / len(batches)
