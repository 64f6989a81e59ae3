"""Simulate: what do preemptible instances gain, on which market, by which policy?

    rlboost simulate --config=paper_14b_static --workdir=runs/sim

The manager that decides is production's own, in virtual time. Writes `summary.json`,
`steps.jsonl` and `config.json` into the workdir. Any field can be set with
`--config.section.field=value`; docs/how-to/simulator.md tells of the models.
"""

import functools

from absl import app, flags
from ml_collections import config_flags

from rlboost_jax.platform import exits
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.command_line import parse
from rlboost_jax.settings.shipped import OF_SIMULATIONS
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.simulator.simulation_run import report, simulate

_CONFIG = config_flags.DEFINE_config_file("config", None, "Configuration file.", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results; made where missing.")


def main(argv: list[str]) -> None:
    try:
        if _CONFIG.value is None:
            raise ConfigError("no --config given; name one, such as --config=paper_8b_static")
        if not _WORKDIR.value:
            raise ConfigError("no --workdir given; name the folder of the results")
        found = simulate(
            sim_config(_CONFIG.value), _WORKDIR.value, lambda line: print(line, flush=True)
        )
    except (ConfigError, OSError) as error:
        exits.leave(f"error: {error}", exits.MISTAKE)
    except KeyboardInterrupt:
        exits.leave("interrupted", exits.by_signal(2))
    print(report(found))
    print(f"summary: {_WORKDIR.value}/summary.json")


if __name__ == "__main__":
    own = functools.partial(parse, record=SimConfig, command="simulate", kind=OF_SIMULATIONS)
    app.run(main, flags_parser=own)
