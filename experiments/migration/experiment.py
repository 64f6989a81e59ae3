"""What does it save that lost responses go on from the tokens they had?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from experiments.plots import COLOURS, Drawing, line, panels
from experiments.simulated import SEEDS, config_of, interval
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.world import World

WAYS = {"migrate": "go on from the tokens there are", "recompute": "begin anew"}
PUBLISHED = {100.0: 0.33, 200.0: 0.76}  # share of the added time that migration saves


def measure(
    *,
    moments: Sequence[float] = (50.0, 100.0, 150.0, 200.0, 300.0, 400.0),
    seeds: Sequence[int] = SEEDS,
    small: bool = False,
) -> dict[str, Any]:
    """Seconds in a settled step → by how much that step is longer when three of six instances
    go at that moment, with and without migration."""
    config = replace(config_of("14b", small=small), settling_steps=0, num_steps=4 if small else 8)
    added: dict[str, dict[str, list[float]]] = {
        f"{moment:g}": {way: [] for way in WAYS} for moment in moments
    }
    for seed in seeds:
        calm = World(config, static(6).changes, seed=seed, seconds=1e9).run()
        for moment in moments:
            at = calm[-1]["begun_at"] + (moment / 50 if small else moment)
            lost = tuple(MachineChange(at, False, f"machine{i}") for i in (1, 2, 3))
            for way in WAYS:
                policy = replace(config.policy, migration=way == "migrate")
                chosen = replace(config, policy=policy)
                rows = World(chosen, (*static(6).changes, *lost), seed=seed, seconds=1e9).run()
                longer = rows[-1]["step_seconds"] - calm[-1]["step_seconds"]
                added[f"{moment:g}"][way].append(longer)
    return {
        moment: {
            **{way: interval(seconds) for way, seconds in ways.items()},
            "saved": interval(
                [
                    1 - a / b if b > 0 else None  # None: the step was over by then
                    for a, b in zip(ways["migrate"], ways["recompute"], strict=True)
                ]
            ),
        }
        for moment, ways in added.items()
    }


def figure(results: dict[str, Any]) -> Drawing:
    drawn, axes = panels(2)
    moments = [float(moment) for moment in results]
    for way, label in WAYS.items():
        cells = [row[way] for row in results.values()]
        line(axes[0], moments, cells, marker="o", ms=3, label=label)
    lost = [(m, row["saved"]) for m, row in results.items() if row["saved"]["mean"] is not None]
    at = [float(moment) for moment, _ in lost]
    line(
        axes[1],
        at,
        [cell for _, cell in lost],
        marker="o",
        ms=3,
        label="simulated",
        color=COLOURS[2],
    )
    axes[1].plot(
        [*PUBLISHED], [*PUBLISHED.values()], "x", ms=7, color=COLOURS[2], label="published"
    )
    axes[0].set_ylabel("step longer by, s")
    axes[1].set_ylabel("share of it that migration saves")
    for panel in axes:
        panel.set_xlabel("three of six instances go at, s into the step")
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=7)
    return drawn
