"""What preemptible servers bring each preset of `configs/`, and so what they may cost.

    python -m experiments.spot_discount.presets        # some ten minutes on one core

Simulates every preset at the bounds of its own programs (`configs/sim/h100.py`) with fleets that
stay, of one instance up to `fleet.max_instances`, and with none. Writes the ratios of tokens per
second, means over three seeds, to `configs/sim/h100_speedups.py`, from where `--dry_run` has them.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from configs.sim import h100
from experiments.simulated import SEEDS, outcome
from rlboost_jax.platform import command_parser
from rlboost_jax.simulator.intervals import mean
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.simulator.systems import PUBLISHED

HEADER: Final = '''"""Speeds of the runs of `configs/` with preemptible H100s. Do not edit.

Simulated, not measured: `python -m experiments.spot_discount.presets` writes this file and says
how. `speedups` are tokens per second with 1, 2, … instances that stay, over those of the reserved
devices alone. A run with the other fields of a preset has its speedups.
"""

from typing import Any

SPEEDUPS: dict[str, dict[str, Any]] = {'''
FILE: Final = Path(h100.__file__).with_name("h100_speedups.py")


def measure(
    name: str, *, seeds: Sequence[int] = SEEDS, instances: Sequence[int] = ()
) -> list[float]:
    """Tokens per second of one preset with 1, 2, … instances over those without any.

    Args:
        instances: sizes of fleets; empty: all up to the preset's largest.
    """
    config = sim_config(h100.get_config(name))
    sizes = instances or [size for size in config.market.instances if size]
    alone = [outcome(PUBLISHED, config, 0, seed=seed).tokens_per_second for seed in seeds]
    return [
        mean(
            [
                outcome(PUBLISHED, config, size, seed=seed).tokens_per_second / own
                for seed, own in zip(seeds, alone, strict=True)
            ]
        )
        for size in sizes
    ]


def run_of(name: str) -> dict[str, Any]:
    """What a run must have in common with a preset for the preset's figures to be its own."""
    own = importlib.import_module(f"configs.{name}").get_config()
    return {
        "num_params": h100.BOUNDS[name]["num_params"],
        "lora_rank": own.model.lora.rank,
        "mesh": list(own.learner.mesh),
        "tensor_parallel": own.engine.tensor_parallel,
        "slots": own.engine.slots,
        "prompts_per_step": own.learner.prompts_per_step,
        "group_size": own.algorithm.group_size,
        "max_response_tokens": own.sampling.max_response_tokens,
        "lag": own.algorithm.lag,
    }


def written(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The file that keeps them."""
    lines = [HEADER]
    for name, figures in found.items():
        lines.append(f'    "{name}": {{')
        lines += [f'        "{key}": {_text(value)},' for key, value in figures.items()]
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(f'{each:.4g}' for each in value)}{',' * (len(value) == 1)})"
    return str(value) if value < 10_000 else f"{value:_}"


def main() -> None:
    found = {}
    for name in h100.BOUNDS:
        found[name] = {**run_of(name), "speedups": measure(name)}
        print(f"{name}: {_text(found[name]['speedups'])}", flush=True)
    FILE.write_text(written(found))


if __name__ == "__main__":
    command_parser.take_none("experiments.spot_discount.presets", __doc__)
    main()
