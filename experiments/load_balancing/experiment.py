"""What does it bring to move responses between instances all the time?"""

from collections.abc import Sequence
from typing import Any

from experiments.plots import Drawing, line, panels
from experiments.simulated import SEEDS, config_of, gains, interval, outcome
from rlboost_jax.simulator.market.simulated_market import MachineChange, Market

SYSTEMS = {"rlboost": "balanced all the time", "no_balance": "placed once"}


def late_joiners(count: int, *, every: float, seconds: float) -> Market:
    """So many instances, of which half are replaced every so many seconds."""
    changes = [MachineChange(0.0, True, f"machine{i}") for i in range(count)]
    names = [f"machine{i}" for i in range(count)]
    moment, number = every, 0
    while moment < seconds:
        for place in range((count + 1) // 2):
            changes.append(MachineChange(moment, False, names[place]))
            number += 1
            names[place] = f"next{number}"
            changes.append(MachineChange(moment, True, names[place]))
        names = [*names[(count + 1) // 2 :], *names[: (count + 1) // 2]]
        moment += every
    return Market(name="half replaced", instances=None, seconds=seconds, changes=tuple(changes))


def measure(
    *,
    instances: Sequence[int] = (1, 2, 4, 6, 8),
    seeds: Sequence[int] = SEEDS,
    small: bool = False,
) -> dict[str, Any]:
    """Fleet ("stays" or "half replaced") → instances → system → gains over the co-located
    baseline, and the seconds of a step's rollouts."""
    config = config_of("14b", small=small)
    unit = 60.0 if small else 600.0
    found: dict[str, Any] = {}
    for kind in ("stays", "half replaced"):
        for count in instances:
            fleet: Market | int = count
            if kind != "stays":
                fleet = late_joiners(count, every=1.5 * unit, seconds=24 * unit)
            baseline = [outcome("colocated_static", config, 0, seed=seed) for seed in seeds]
            row = found.setdefault(kind, {}).setdefault(str(count), {})
            for system in SYSTEMS:
                own = [outcome(system, config, fleet, seed=seed) for seed in seeds]
                seconds = interval([one.means()["rollout_seconds"] for one in own])
                row[system] = {**gains(own, baseline), "rollout_seconds": seconds}
    return found


def figure(results: dict[str, Any]) -> Drawing:
    drawn, axes = panels(2)
    for panel, (kind, fleets) in zip(axes, results.items(), strict=True):
        counts = [int(count) for count in fleets]
        for system, label in SYSTEMS.items():
            cells = [fleet[system]["throughput_ratio"] for fleet in fleets.values()]
            line(panel, counts, cells, marker="o", ms=3, label=label)
        panel.set_title(f"fleet: {kind}", fontsize=9)
        panel.set_xlabel("instances of 2 chips")
        panel.set_ylabel("throughput / co-located")
        panel.set_ylim(bottom=0)
    axes[0].legend(fontsize=7)
    return drawn
