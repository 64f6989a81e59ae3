"""The model's windows against the best fixed ones: step by step, and after a fleet has changed.

    python -m experiments.policies.windows --seeds 40 41 42 43 --instances 1 3 6

All runs of a seed have the same responses, so that steps are compared one by one.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from experiments.plots import FOLDER
from experiments.simulated import ALL_FITTED, config_of, interval
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.world import World

WINDOWS: Final = ("model", "paper")
SHARES: Final = (0.8, 0.9, 1.0, 1.1, 1.2)  # of the model's own mean window, as fixed ones
STEPS: Final = 9
CHANGES_AT: Final = 5  # the step that begins with another fleet
SETTLED: Final = 2  # the first step without what a run must find out first
WITHIN: Final = 1.05  # of the best fixed window's step: found
Steps = list[dict[str, Any]]


def steps(config: SimConfig, changes: Sequence[MachineChange], seed: int) -> Steps:
    return World(config, changes, seed=seed, seconds=1e9).run()


def fixed(config: SimConfig, window: float) -> SimConfig:
    """Algorithm 1 that never corrects itself."""
    policy = replace(
        config.policy, window="paper", window_memory=False, window_eta=1e12,
        window_initial_seconds=window,
    )  # fmt: skip
    return replace(config, policy=policy)


def own(config: SimConfig, window: str) -> SimConfig:
    return replace(config, policy=replace(config.policy, window=window))


def mean_seconds(rows: Steps) -> float:
    settled = [row["step_seconds"] for row in rows[SETTLED:]]
    return sum(settled) / len(settled)


def best_fixed(config: SimConfig, instances: int, model: Steps, seed: int) -> Steps:
    """Find the best fixed window around the model's, by its settled steps."""
    windows = [row["seeding_window_seconds"] for row in model[SETTLED:]]
    window = sum(windows) / len(windows)
    runs = [
        steps(fixed(config, share * window), static(instances).changes, seed) for share in SHARES
    ]
    return min(runs, key=mean_seconds)


def found_after(rows: Steps, best: Steps, first: int) -> int:
    """Steps from `first` on until none takes longer than the best window's, but for 5 %."""
    late = [
        row["step"] for row, other in zip(rows, best, strict=True)
        if row["step"] >= first and row["step_seconds"] > WITHIN * other["step_seconds"]
    ]  # fmt: skip
    return max(late, default=first - 1) + 1 - first


def changed(rows: Steps, before: int, after: int) -> list[MachineChange]:
    """A market that lends `before` instances, and `after` from the middle of step
    `CHANGES_AT` − 1 of these rows on."""
    at = rows[CHANGES_AT - 1]["begun_at"] + 0.5 * rows[CHANGES_AT - 1]["step_seconds"]
    machines = range(min(before, after), max(before, after))
    changes = [MachineChange(at, after > before, f"other{machine}") for machine in machines]
    early = [MachineChange(0.0, True, change.machine) for change in changes if after < before]
    return [*static(min(before, after)).changes, *early, *changes]


def measure(seed: int, instances: Sequence[int], *, small: bool = False) -> dict[str, Any]:
    """Number of instances → how windows compare; "a to b" of a fleet that changed → the steps
    that each took to be as good as the best for b."""
    config = config_of(
        "14b", small=small, seed=seed, num_steps=STEPS, settling_steps=1, **ALL_FITTED
    )
    chosen: dict[int, dict[str, Steps]] = {}
    best: dict[int, Steps] = {}
    found: dict[str, Any] = {}
    for count in instances:
        market = static(count).changes
        chosen[count] = {name: steps(own(config, name), market, seed) for name in WINDOWS}
        best[count] = best_fixed(config, count, chosen[count]["model"], seed)
        found[str(count)] = {
            "best_fixed_window": best[count][0]["seeding_window_seconds"],
            "best_fixed_step": mean_seconds(best[count]),
            **{name: against(rows, best[count]) for name, rows in chosen[count].items()},
        }
    for before, after in itertools.permutations(instances, 2):
        market = changed(chosen[before]["model"], before, after)
        found[f"{before} to {after}"] = {
            name: found_after(steps(own(config, name), market, seed), best[after], CHANGES_AT)
            for name in WINDOWS
        }
    return found


def against(rows: Steps, best: Steps) -> dict[str, float]:
    """Relative to the steps of the best fixed window; negative: shorter."""
    return {
        "regret": mean_seconds(rows) / mean_seconds(best) - 1,
        "first_step_regret": rows[0]["step_seconds"] / best[0]["step_seconds"] - 1,
        "found_after": found_after(rows, best, 0),
    }


def over_seeds(runs: Sequence[Any]) -> Any:
    """The same names, with each seed's numbers, their means and intervals."""
    if isinstance(runs[0], dict):
        return {name: over_seeds([run[name] for run in runs]) for name in runs[0]}
    return {**interval(runs), "each": list(runs)}


def carry_out(
    name: str,
    measure: Callable[[int, Sequence[int]], dict[str, Any]],
    over_seeds: Callable[[Sequence[dict[str, Any]]], Any],
) -> None:
    """For the seeds and fleets of the command line; results go to `name`.json."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.policies.{name}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[40, 41, 42, 43])
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 3, 6])
    chosen = parser.parse_args()
    runs = []
    for seed in chosen.seeds:
        runs.append(measure(seed, chosen.instances))
        print(seed, json.dumps(runs[-1]), flush=True)
    results = json.dumps(over_seeds(runs), indent=1)
    (FOLDER / "policies" / f"{name}.json").write_text(results + "\n")


if __name__ == "__main__":
    carry_out("windows", measure, over_seeds)
