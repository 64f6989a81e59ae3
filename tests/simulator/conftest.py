"""A small simulation: two reserved engines, 16 prompts x 4 responses of about 800 tokens."""

from collections.abc import Callable
from typing import Any

import pytest

from configs.sim import base
from experiments.simulated import TINY
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config

Make = Callable[..., SimConfig]

SMALL = {
    **TINY,
    "num_steps": 4,
    "settling_steps": 1,
    "engine.memory_efficiency": 0.5,
    "engine.step_overhead_seconds": 0.004,
    "workload.sigma": 0.8,
    "workload.group_correlation": 0.5,
    "trainer.compute_efficiency": 0.38,
    "trainer.begin_seconds": 0.5,
}


def make_config(**changes: Any) -> SimConfig:
    """`section__field` names what changes."""
    config = base.get_config("14b")
    config.market.hazard.machines = 4.0
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    config.update_from_flattened_dict({**SMALL, **changed})
    return sim_config(config)


@pytest.fixture
def make() -> Make:
    return make_config
