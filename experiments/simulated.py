"""Simulations that several experiments ask for, with the parameters of the paper's evaluation.

They are those of `configs/sim/base.py`; how the free ones among them were chosen is in
`paper_evaluation/README.md`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from configs.sim import base
from rlboost_jax.simulator.intervals import Number, half_width, mean
from rlboost_jax.simulator.market.simulated_market import Market, static
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.simulator.systems import rows_of

SEEDS = (0, 1, 2)  # each other lengths, and other machines on a market of chance
# What `configs/sim/base.py` had before an H100's shares came from the table of its programs: all of
# it fitted. Experiments that say so were carried out with these.
ALL_FITTED: Mapping[str, float] = {
    "engine__memory_efficiency": 0.65,
    "engine__compute_efficiency": 0.5,
    "engine__step_overhead_seconds": 0.01,
    "trainer__compute_efficiency": 0.45,
    "workload__sigma": 0.8,
    "workload__group_correlation": 0.8,
}
TINY = {  # some seconds of virtual time per step
    "reserved.chips_per_node": 4,
    "workload.prompts_per_step": 16,
    "workload.group_size": 4,
    "workload.mean_tokens": 800.0,
    "workload.max_response_tokens": 3000,
    "engine.slots": 32,
    "engine.reserve_ratio": 0.0,
    "engine.memory_fraction": 0.85,
    "policy.window_initial_seconds": 8.0,
    "trainer.apply_seconds": 0.5,
    "trainer.switch_seconds": 0.5,
    "trainer.micro_batch_seconds": 0.01,
    "instance.start_seconds": 10.0,
}


def config_of(model: str, *, small: bool = False, **changes: Any) -> SimConfig:
    """
    Args:
        small: a workload that is simulated in no time, of which nothing follows.
        changes: `section__field` = value.
    """
    config = base.get_config(model)
    config.num_steps, config.settling_steps = (2, 1) if small else (14, 6)
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    config.update_from_flattened_dict({**(TINY if small else {}), **changed})
    return sim_config(config)


def outcome(system: str, config: SimConfig, market: Market | int, *, seed: int) -> Outcome:
    """Simulate on a market, or with so many instances that stay; settled steps only."""
    fleet = static(market) if isinstance(market, int) else market
    return Outcome(*rows_of(system, config, fleet, seed=seed), settling=config.settling_steps)


def gains(own: Sequence[Outcome], baseline: Sequence[Outcome]) -> dict[str, Any]:
    """Throughput and tokens per dollar over a baseline's, seed by seed: means and intervals."""
    ratios = [one.against(other) for one, other in zip(own, baseline, strict=True)]
    return {
        name: interval([ratio[name] for ratio in ratios])
        for name in ("throughput_ratio", "cost_efficiency")
    }


def interval(values: Sequence[Number]) -> dict[str, Number]:
    """Mean, and half the width of its 95 % interval over seeds."""
    return {"mean": mean(values), "half_width": half_width(values)}
