"""What it would bring to know lengths beforehand: fleets that stay, the model's windows.

    python -m experiments.policies.foresight --seeds 50 51 --instances 1 3 6 10 14

All runs of a seed have the same responses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from experiments.policies.known import tell_lengths, tell_means
from experiments.policies.windows import STEPS, carry_out, mean_seconds
from experiments.simulated import ALL_FITTED, config_of, interval
from rlboost_jax.simulator.market.simulated_market import static
from rlboost_jax.simulator.world import World

Run = tuple[Mapping[str, Any], Callable[[World], None]]  # what differs, what it knows
LONGEST_FIRST: Final = {"longest_first": True}
RUNS: Final[Mapping[str, Run]] = {
    "nothing known": ({}, lambda world: None),
    "longest expected first": (LONGEST_FIRST, lambda world: None),
    "each group's mean known": (LONGEST_FIRST, tell_means),
    "all lengths known": (LONGEST_FIRST, tell_lengths),
}


def measure(seed: int, instances: Sequence[int], *, small: bool = False) -> dict[str, Any]:
    """By fleet, for each of `RUNS` the mean seconds of its settled steps."""
    config = config_of("14b", small=small, seed=seed, num_steps=STEPS, **ALL_FITTED)
    found: dict[str, Any] = {}
    for count in instances:
        found[str(count)] = {}
        for name, (changes, tell) in RUNS.items():
            policy = replace(config.policy, window="model", **changes)
            world = World(
                replace(config, policy=policy), static(count).changes, seed=seed, seconds=1e9
            )
            tell(world)
            found[str(count)][name] = mean_seconds(world.run())
    return found


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean seconds where nothing is known, and what each other run's are of them, paired."""
    plain = "nothing known"
    return {
        count: {
            plain: interval([run[count][plain] for run in runs]),
            **{
                name: interval([run[count][name] / run[count][plain] for run in runs])
                for name in RUNS
                if name != plain
            },
        }
        for count in runs[0]
    }


if __name__ == "__main__":
    carry_out("foresight", measure, over_seeds)
