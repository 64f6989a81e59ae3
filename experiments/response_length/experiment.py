"""Does it pay more, the longer responses get?"""

from collections.abc import Sequence
from typing import Any

from experiments.plots import COLOURS, Drawing, line, panels
from experiments.simulated import SEEDS, config_of, gains, outcome


def measure(
    *,
    longest: Sequence[int] = (5120, 8192, 14_336),
    instances: Sequence[int] = (1, 2, 3, 4, 6, 8),
    seeds: Sequence[int] = SEEDS[:2],
    small: bool = False,
) -> dict[str, Any]:
    """Longest response → instances → gains of Qwen3-14B over the co-located baseline."""
    found: dict[str, Any] = {}
    for tokens in longest:
        config = config_of("14b", small=small, workload__max_response_tokens=tokens)
        baseline = [outcome("colocated_static", config, 0, seed=seed) for seed in seeds]
        found[str(tokens)] = {
            str(count): gains(
                [outcome("rlboost", config, count, seed=seed) for seed in seeds], baseline
            )
            for count in instances
        }
    return found


def best(fleets: dict[str, Any]) -> str:
    """The number of instances with the most tokens per dollar."""
    return max(fleets, key=lambda count: fleets[count]["cost_efficiency"]["mean"])


def figure(results: dict[str, Any]) -> Drawing:
    drawn, axes = panels(2)
    for number, (tokens, fleets) in enumerate(results.items()):
        counts, top = [int(count) for count in fleets], best(fleets)
        for panel, key in zip(axes, ("throughput_ratio", "cost_efficiency"), strict=True):
            label = f"at most {int(tokens):,} tokens"
            cells = [cell[key] for cell in fleets.values()]
            line(panel, counts, cells, marker="o", ms=3, color=COLOURS[number], label=label)
            panel.plot(int(top), fleets[top][key]["mean"], "*", ms=11, color=COLOURS[number])
    axes[0].plot([], [], "*", color="grey", ms=9, label="most tokens per dollar")
    axes[0].set_ylabel("throughput / co-located")
    axes[1].set_ylabel("tokens per dollar / co-located")
    for panel in axes:
        panel.axhline(1.0, color="grey", lw=0.8)
        panel.set_xlabel("instances of 2 chips")
    axes[0].legend(fontsize=7)
    return drawn
