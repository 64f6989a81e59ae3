"""How near to the cheapest fleet of three speeds and prices does the manager come by itself?

python -m experiments.fleet_pools.experiment > experiments/fleet_pools/results.jsonl
"""

import json
from collections.abc import Iterator
from typing import Any

from experiments.fleet_pools.fleet import Kind, fluid_bound, lent, tokens_per_dollar, world
from experiments.simulated import TINY
from rlboost_jax.configs.sim import base
from rlboost_jax.simulator.sim_config_loading import sim_config

KINDS = {
    "fast": Kind(slowness=1.0, price_per_hour=5.0, most=4),
    "cheap": Kind(slowness=2.0, price_per_hour=1.4, most=4),
    "dear": Kind(slowness=3.0, price_per_hour=4.0, most=4),
}
SETTINGS: dict[str, Any] = {
    **TINY,
    "engine.memory_efficiency": 0.5,
    "engine.step_overhead_seconds": 0.004,
    "trainer.compute_efficiency": 0.38,
    "trainer.begin_seconds": 0.5,
    "workload.prompts_per_step": 128,
    "workload.sigma": 0.3,
    "workload.group_correlation": 0.5,
    "policy.window": "model",
    "policy.sizing": "marginal",
    "policy.routing": "auto",
    "trainer.lag": 1,
    "num_steps": 14,
}
SETTLED = 5  # steps
CASES: dict[str, dict[str, Any]] = {
    "marginal": {},
    "all that there is": {"policy.sizing": "fixed"},
    "no lag": {"trainer.lag": 0},
    "reserved at $30": {"reserved.price_per_node_hour": 30.0},
    "all that there is, reserved at $30": {
        "policy.sizing": "fixed",
        "reserved.price_per_node_hour": 30.0,
    },
}


def measure(seeds: tuple[int, ...] = (1, 2)) -> Iterator[dict[str, Any]]:
    for case, changes in CASES.items():
        for seed in seeds:
            values = base.get_config("14b")
            values.update_from_flattened_dict({**SETTINGS, **changes})
            config = sim_config(values)
            made = world(config, KINDS, lent(KINDS), seed=seed)
            rows = made.run()[SETTLED:]
            size = config.workload.prompts_per_step * config.workload.group_size
            lengths = [[made.length(row["step"], n) for n in range(size)] for row in rows]
            found = tokens_per_dollar(config, rows)
            yield {
                "case": case,
                "seed": seed,
                "tokens_per_dollar": round(found),
                "of_bound": round(found / fluid_bound(config, KINDS, lengths), 4),
                "instances": round(sum(r["instances_mean"] for r in rows) / len(rows), 2),
            }


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row), flush=True)
