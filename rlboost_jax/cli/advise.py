"""What would one more instance cost or save, and how many are worth having?

    rlboost advise --workdir=runs/gsm8k
    rlboost advise --config=paper_14b_static

Of a run: from what its manager predicted after each step (`predicted` in `events.jsonl`, with
`manager.window = "model"` or `fleet.sizing = "marginal"`), else from what every run records of
its steps; against the step times in `metrics.jsonl`. Of a simulation's configuration: its
workload is simulated for some steps with the first fleet of its market that has an instance, and
the manager asked.
"""

import functools

from absl import app, flags
from ml_collections import config_flags

from rlboost_jax.manager.policies.advice import report
from rlboost_jax.platform import exits
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.command_line import parse
from rlboost_jax.settings.shipped import OF_SIMULATIONS
from rlboost_jax.simulator.calibration.advice_inputs import of_run, of_simulation
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config

_CONFIG = config_flags.DEFINE_config_file("config", None, "Simulation to ask.", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run to ask.")

_SETTLING = flags.DEFINE_integer(
    "settling", 2, "Steps of the run's beginning that are left out: programs are compiled in them.",
    lower_bound=1,
)  # fmt: skip


def main(argv: list[str]) -> None:
    try:
        if bool(_WORKDIR.value) == (_CONFIG.value is not None):
            raise ConfigError("give either --workdir of a run or --config of a simulation")
        if _WORKDIR.value:
            advice = of_run(_WORKDIR.value, settling=_SETTLING.value)
        else:
            advice = of_simulation(sim_config(_CONFIG.value))
    except (ConfigError, OSError, ValueError) as error:
        exits.leave(f"error: {error}", exits.MISTAKE)
    except KeyboardInterrupt:
        exits.leave("interrupted", exits.by_signal(2))
    print(report(advice))


if __name__ == "__main__":
    own = functools.partial(parse, record=SimConfig, command="advise", kind=OF_SIMULATIONS)
    app.run(main, flags_parser=own)
