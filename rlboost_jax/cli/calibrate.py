"""Fit the simulator's models to a real run, so that it can be asked what another fleet would do.

    rlboost calibrate --workdir=runs/tiny
    rlboost simulate --config=base --config.calibration=runs/tiny/calibration.json \\
        --workdir=runs/sim

Reads `config.json` and `events.jsonl`, writes `calibration.json` beside them. Prints what was
fitted with 95 % intervals, and how well models of the even steps predict the odd ones.
"""

import functools
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from rlboost_jax.platform import exits
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.command_line import parse
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.shipped import OF_SIMULATIONS, shipped
from rlboost_jax.simulator.calibration.run_calibration import FILE, calibrate
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config, to_dict

_BASE = str(shipped(OF_SIMULATIONS)["base"])
_CONFIG = config_flags.DEFINE_config_file(
    "config", _BASE, "Simulation that says what no run tells.", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_SETTLING = flags.DEFINE_integer(
    "settling", 2, "Steps at the beginning that are left out: programs are compiled in them.",
    lower_bound=1,
)  # fmt: skip


def main(argv: list[str]) -> None:
    try:
        if not _WORKDIR.value:
            raise ConfigError("no --workdir given; name the folder of a run")
        run = read_run_config(_WORKDIR.value)
        base = to_dict(sim_config(_CONFIG.value))
        found = calibrate(run, _WORKDIR.value, base=base, settling=_SETTLING.value)
    except (ConfigError, OSError) as error:
        exits.leave(f"error: {error}", exits.MISTAKE)
    print(report(found))
    print(f"written: {_WORKDIR.value}/{FILE}")


def report(found: dict[str, Any]) -> str:
    """Describe the fitted parameters and their check, for people."""
    lines = [f"fitted to {found['steps']} steps; 95 % intervals by resampling them"]
    for name, fitted in found["parameters"].items():
        lines.append(f"{name:>32} {fitted['value']:>12.4g} ± {fitted['half_width']:.2g}")
    check = found["check"]
    lines.append(
        f"models of {check['fitted_steps']} steps on {check['predicted_steps']} others: predicted "
        f"{check['predicted_seconds']:.3f} s, measured {check['measured_seconds']:.3f} "
        f"± {check['measured_half_width'] or 0:.2g} s, ratio {check['ratio']:.3f}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    own = functools.partial(parse, record=SimConfig, command="calibrate", kind=OF_SIMULATIONS)
    app.run(main, flags_parser=own)
