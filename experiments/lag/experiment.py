"""What does it gain to generate the next batches while one is trained on?"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.plots import COLOURS, Drawing, line, panels
from experiments.simulated import SEEDS, config_of, gains, interval, outcome
from rlboost_jax.simulator.bound import run_bound
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.response_lengths import response_lengths
from rlboost_jax.simulator.sim_config import SimConfig

# Our own engines take pages as responses grow, and so do these; `paper_evaluation` fits others.
ENGINES: Mapping[str, Any] = {"engine__reserve_ratio": 0.0, "policy__routing": "speed"}
SYSTEMS = {"0": "model_window", "1": "lag_1", "2": "lag_2"}  # by lag


def measure(
    *,
    instances: Sequence[int] = (0, 2, 4, 8, 12, 16),
    seeds: Sequence[int] = SEEDS,
    small: bool = False,
) -> dict[str, Any]:
    """Lag → instances → gains over no lag, and over what a run cannot take less than."""
    config = config_of("14b", small=small, **ENGINES)
    found: dict[str, Any] = {lag: {} for lag in SYSTEMS}
    for count in instances:
        on_policy = [outcome(SYSTEMS["0"], config, count, seed=seed) for seed in seeds]
        for lag, system in SYSTEMS.items():
            own = on_policy
            if lag != "0":
                own = [outcome(system, config, count, seed=seed) for seed in seeds]
            shares = [
                of_bound(config, one, count, seed=seed)
                for one, seed in zip(own, seeds, strict=True)
            ]
            found[lag][str(count)] = {**gains(own, on_policy), "of_bound": interval(shares)}
    return found


def of_bound(config: SimConfig, outcome: Outcome, instances: int, *, seed: int) -> float:
    """Least seconds of the settled steps, however far ahead they were generated, over theirs."""
    steps = [response_lengths(config.workload, seed=seed, step=r["step"]) for r in outcome.rows]
    least = run_bound(config, steps, lambda seconds: instances * seconds)
    return least / sum(row["step_seconds"] for row in outcome.rows)


def figure(results: dict[str, Any]) -> Drawing:
    drawn, axes = panels(3)
    keys = ("throughput_ratio", "cost_efficiency", "of_bound")
    for number, (lag, fleets) in enumerate(results.items()):
        counts = [int(count) for count in fleets]
        for panel, key in zip(axes, keys, strict=True):
            cells = [cell[key] for cell in fleets.values()]
            line(panel, counts, cells, marker="o", ms=3, color=COLOURS[number], label=f"lag {lag}")
    axes[0].set_ylabel("throughput / lag 0")
    axes[1].set_ylabel("tokens per dollar / lag 0")
    axes[2].set_ylabel("throughput / bound of any lag")
    for panel in axes:
        panel.axhline(1.0, color="grey", lw=0.8)
        panel.set_xlabel("instances of 2 chips")
    axes[0].legend()
    return drawn
