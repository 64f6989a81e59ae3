"""What do k preemptible instances gain, if none ever goes?"""

from collections.abc import Sequence
from typing import Any

from experiments.plots import COLOURS, Drawing, line, panels
from experiments.simulated import SEEDS, config_of, gains, outcome

PUBLISHED = {"8b": {1: 1.2, 2: 1.4, 3: 1.6, 4: 1.8}, "14b": {1: 1.37, 6: 2.25}}  # throughput


def measure(
    *,
    models: Sequence[str] = ("8b", "14b", "32b"),
    instances: Sequence[int] = (0, 1, 2, 3, 4, 6, 8),
    seeds: Sequence[int] = SEEDS,
    small: bool = False,
) -> dict[str, Any]:
    """Model → instances → gains over the co-located baseline that the paper had."""
    found: dict[str, Any] = {}
    for model in models:
        config = config_of(model, small=small)
        baseline = [outcome("colocated_static", config, 0, seed=seed) for seed in seeds]
        found[model] = {
            str(count): gains(
                [outcome("rlboost", config, count, seed=seed) for seed in seeds], baseline
            )
            for count in instances
        }
    return found


def figure(results: dict[str, Any]) -> Drawing:
    drawn, axes = panels(2)
    for number, (model, fleets) in enumerate(results.items()):
        counts = [int(count) for count in fleets]
        for panel, key in zip(axes, ("throughput_ratio", "cost_efficiency"), strict=True):
            cells = [cell[key] for cell in fleets.values()]
            line(panel, counts, cells, marker="o", ms=3, color=COLOURS[number], label=model.upper())
        known = PUBLISHED.get(model, {})
        axes[0].plot([*known], [*known.values()], "x", color=COLOURS[number], ms=7)
    axes[0].plot([], [], "x", color="grey", ms=7, label="published")
    axes[0].set_ylabel("throughput / co-located")
    axes[1].set_ylabel("tokens per dollar / co-located")
    for panel in axes:
        panel.axhline(1.0, color="grey", lw=0.8)
        panel.set_xlabel("instances of 2 chips")
    axes[0].legend()
    return drawn
