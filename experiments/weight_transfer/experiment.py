"""What is it worth that a server that joins in mid-step gets the weights at once?"""

from collections.abc import Sequence
from typing import Any

from experiments.plots import Drawing, line, panels
from experiments.simulated import SEEDS, config_of, gains, interval, outcome
from rlboost_jax.simulator.market.simulated_market import markets

SYSTEMS = {"rlboost": "pulled at once", "sync_weights": "sent when a step begins"}


def measure(
    *,
    lifetimes: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
    seeds: Sequence[int] = SEEDS,
    small: bool = False,
) -> dict[str, Any]:
    """System → mean lifetime of an instance in hours → gains over the co-located baseline on a
    market that lends six on average, and the instances that were ready."""
    found: dict[str, Any] = {system: {} for system in SYSTEMS}
    for hours in lifetimes:
        config = config_of(
            "14b",
            small=small,
            settling_steps=0,
            market__kind="hazard",
            market__segments=((0.0, 0.3 if small else 5.0),),
            market__hazard__machines=6.0,
            market__hazard__lifetime_hours=hours / 20 if small else hours,
            market__hazard__batch_size=1.0,
        )
        drawn = {seed: markets(config.market, seed=seed)[0] for seed in seeds}
        baseline = [outcome("colocated_static", config, drawn[s], seed=s) for s in seeds]
        for system in SYSTEMS:
            own = [outcome(system, config, drawn[seed], seed=seed) for seed in seeds]
            ready = interval([one.means()["instances_mean"] for one in own])
            found[system][str(hours)] = {**gains(own, baseline), "instances": ready}
    return found


def figure(results: dict[str, Any]) -> Drawing:
    drawn, axes = panels(2)
    for system, label in SYSTEMS.items():
        hours = [float(key) for key in results[system]]
        for panel, key in zip(axes, ("throughput_ratio", "instances"), strict=True):
            cells = [cell[key] for cell in results[system].values()]
            line(panel, hours, cells, marker="o", ms=3, label=label)
    axes[0].set_ylabel("throughput / co-located")
    axes[1].set_ylabel("instances ready, mean")
    for panel in axes:
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlabel("mean lifetime of an instance, hours")
        panel.set_ylim(bottom=0)
    axes[0].legend(fontsize=7)
    return drawn
