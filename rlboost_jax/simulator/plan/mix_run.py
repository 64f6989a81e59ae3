"""A run with a mix of machines, simulated for some steps and carried on to its last.

The first `settling` steps count as they are. Of the others the mean stands for all that follow:
what a run of N steps takes is the settling steps and N − settling times that mean.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.simulator.plan.mix_market import changes
from rlboost_jax.simulator.plan.mixes import Mix
from rlboost_jax.simulator.plan.purchase import Purchase
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.simulation_garbage import without_collections
from rlboost_jax.simulator.systems import Worlds
from rlboost_jax.simulator.world import World

FIRST_SECONDS: Final = 3600.0 * 6  # of a market that is drawn; twice as much where it is too short
LAST_SECONDS: Final = 3600.0 * 24 * 365


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """Length of a run, and how much of it is simulated."""

    run_steps: int
    steps: int  # simulated
    settling: int  # of these, at the beginning
    seeds: tuple[int, ...]

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each simulated step, in steps of the run."""
        rest = self.steps - self.settling
        each = (self.run_steps - self.settling) / rest
        return (1.0,) * self.settling + (each,) * rest


def horizon_of(*, run_steps: int, steps: int, settling: int, seeds: Sequence[int]) -> Horizon:
    """Make a horizon no longer than the run. Raises ConfigError where no step is left."""
    steps = min(steps, run_steps)
    if steps == run_steps:  # nothing is carried on
        settling = 0
    if settling >= steps:
        raise ConfigError(f"--settling is {settling} of {steps} simulated steps; lower it")
    return Horizon(run_steps=run_steps, steps=steps, settling=settling, seeds=tuple(seeds))


@dataclass(frozen=True, kw_only=True)
class MixSample:
    """Result of a simulated run with one seed."""

    seconds: float
    dollars: float
    tokens: float
    losses: float  # of instances


def run_mix(
    purchase: Purchase, mix: Mix, horizon: Horizon, *, seed: int, world: Worlds = World
) -> MixSample:
    """Simulate a run with a mix. Raises ConfigError where a step does not end within a year."""
    config = learner_of(purchase, mix, horizon)
    seconds = FIRST_SECONDS
    with without_collections():
        while True:
            market = changes(purchase.prices.instances, mix.counts, seed=seed, seconds=seconds)
            machines = purchase.machines(mix.counts, mix.reserved)
            rows = world(config, market, seed=seed, seconds=seconds, machines=machines).run()
            if len(rows) >= horizon.steps:
                return sample_of(config, rows, horizon)
            if seconds >= LAST_SECONDS:
                raise ConfigError(
                    f"{len(rows)} steps in {seconds / 3600:,.0f} h, fewer than the "
                    f"{horizon.steps} to simulate; lower --steps"
                )
            seconds *= 2


def learner_of(purchase: Purchase, mix: Mix, horizon: Horizon) -> SimConfig:
    """Return the configuration with which a mix is simulated."""
    return replace(purchase.learners[mix.reserved], num_steps=horizon.steps, settling_steps=0)


def sample_of(config: SimConfig, rows: Sequence[Mapping[str, Any]], horizon: Horizon) -> MixSample:
    hourly = config.reserved.nodes * config.reserved.price_per_node_hour
    weighted = list(zip(horizon.weights, rows, strict=True))

    def total(name: str) -> float:
        return math.fsum(weight * row[name] for weight, row in weighted)

    seconds = total("step_seconds")
    paid = total("instance_dollars") + total("egress_dollars")
    return MixSample(
        seconds=seconds,
        dollars=seconds / 3600 * hourly + paid,
        tokens=total("response_tokens"),
        losses=total("instances_lost"),
    )
