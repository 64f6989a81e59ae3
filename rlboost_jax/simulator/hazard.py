"""A synthetic market: Poisson arrivals, losses that come in batches, times without arrivals.

Each machine on loan is lost at rate 1 / lifetime. Losses come together: a loss event takes a
geometric number of machines (mean `batch_size`, as far as there are any), and comes so much
more seldom. Arrivals come one by one at the rate that keeps the mean number on loan, except in
droughts, which begin and end at exponential times; outside them arrivals are so much faster.
With batch_size 1 and no droughts the number on loan is that of an M/M/∞ queue: Poisson with
mean `machines`.
"""

import math
from collections.abc import Sequence

import numpy as np

from rlboost_jax.config.traces import TraceRow
from rlboost_jax.simulator.records import HazardConfig

HOUR = 3_600_000.0  # milliseconds
DROUGHT = 3.0  # mean gaps between arrivals: a longer gap is a drought; of a Poisson process, 5 %


def draw(hazard: HazardConfig, *, hours: float, seed: int) -> tuple[TraceRow, ...]:
    """A trace of that length, which begins with the mean number of machines."""
    random = np.random.default_rng(seed)
    dry, gap = hazard.drought_hours, hazard.drought_gap_hours
    arrivals = hazard.machines / hazard.lifetime_hours * ((gap + dry) / gap if dry else 1.0)
    alive = [f"node{i + 1}" for i in range(round(hazard.machines))]
    named = len(alive)
    rows = [TraceRow(milliseconds=0.0, action="add", name=name) for name in alive]
    at, drought = 0.0, False
    turn = random.exponential(gap) if dry else math.inf  # when a drought begins or ends
    while True:
        losses = len(alive) / hazard.lifetime_hours / hazard.batch_size
        total = losses + (0.0 if drought else arrivals)
        following = at + random.exponential(1 / total) if total else math.inf
        at = min(following, turn)
        if at >= hours:
            return tuple(rows)
        if turn < following:
            drought = not drought
            turn += random.exponential(dry if drought else gap)
        elif random.random() * total < losses:
            for _ in range(min(len(alive), int(random.geometric(1 / hazard.batch_size)))):
                name = alive.pop(int(random.integers(len(alive))))
                rows.append(TraceRow(milliseconds=at * HOUR, action="remove", name=name))
        else:
            named += 1
            alive.append(f"node{named}")
            rows.append(TraceRow(milliseconds=at * HOUR, action="add", name=alive[-1]))


def fit(rows: Sequence[TraceRow]) -> HazardConfig:
    """The parameters that a trace shows, by its moments.

    machines: mean on loan. lifetime: machine-hours per loss. batch_size: losses per moment at
    which any come; capped batches and coincidences make it an estimate. A drought is a gap
    between arrivals of more than three times the mean gap.

    Raises ValueError for a trace without a loss: nothing is known of lifetimes then.
    """
    end = rows[-1].milliseconds / HOUR
    alive: dict[str, float] = {}
    machine_hours = 0.0
    added, removed = [], []
    for row in rows:
        at = row.milliseconds / HOUR
        if row.action == "add":
            alive[row.name] = at
            added.append(at)
        elif row.name in alive:
            machine_hours += at - alive.pop(row.name)
            removed.append(at)
    machine_hours += sum(end - since for since in alive.values())
    if not removed or end <= 0:
        raise ValueError(f"a trace of {end:g} h with {len(removed)} losses shows no lifetimes")
    moments = sorted(set(added))
    gaps = np.diff(moments)
    mean_gap = gaps.mean() if len(gaps) else 0.0
    droughts = gaps[gaps > DROUGHT * mean_gap]
    dry = float(droughts.mean()) if len(droughts) else 0.0
    return HazardConfig(
        machines=machine_hours / end,
        lifetime_hours=machine_hours / len(removed),
        batch_size=len(removed) / len(set(removed)),
        drought_hours=dry,
        drought_gap_hours=(end - len(droughts) * dry) / max(1, len(droughts)) if dry else 0.0,
    )
