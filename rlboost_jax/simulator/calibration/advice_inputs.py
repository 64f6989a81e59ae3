"""What a run's or a simulation's manager predicted, for advice."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from rlboost_jax.manager.policies.advice import Advice, advise
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.simulator.calibration.hindsight import predictions
from rlboost_jax.simulator.calibration.observed import observed
from rlboost_jax.simulator.market.simulated_market import markets, static
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.world import World

KINDS: Final = ("predicted", "foreseen")  # of events; the latter in runs of before
STEPS: Final = 6  # that are simulated
SECONDS: Final = 1e6  # that they may take


def of_run(workdir: str | Path, *, settling: int) -> Advice:
    """Advise from the manager's predictions, or from the recorded steps where it made none.

    Args:
        settling: steps at the beginning that are left out of the latter.

    Raises ConfigError where the run is too short.
    """
    run = read_run_config(workdir)
    seconds = {row["step"]: row["step_seconds"] for row in read_metrics(workdir)}
    said = [row for row in read_events(workdir) if row["kind"] in KINDS]
    if said:
        return advise([{**row["detail"], "step": row["step"]} for row in said], seconds)
    return advise(predictions(run, observed(workdir, settling=settling)), seconds)


def of_simulation(config: SimConfig) -> Advice:
    policy = replace(config.policy, window="model", sizing="marginal")
    config = replace(config, num_steps=STEPS, policy=policy)
    market = next((m for m in markets(config.market, seed=config.seed) if m.changes), static(1))
    world = World(config, market.changes, seed=config.seed, seconds=min(market.seconds, SECONDS))
    rows = world.run()
    return advise(world.predictions, {row["step"]: row["step_seconds"] for row in rows})
