"""What is planned for: a workload with speeds, out of a simulation, a run to be, or a run that was.

- A simulation's configuration is taken as it is.
- A run's is simulated with the times of an H100's programs, where there is a table of them for its
  model and meshes (`configs/sim/h100.py`); by rooflines of an H100, where its model is large enough
  that these mean something.
- A run that was is simulated with what `rlboost calibrate` finds in its workdir.

How long responses are nobody knows before a run: their mean is the paper's, in proportion to the
longest allowed, unless it is given.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import ConfigDictLike, read_run_config, run_config
from rlboost_jax.settings.memory_estimates import num_parameters
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.simulator.calibration.observed import observed
from rlboost_jax.simulator.calibration.run_calibration import parameters, settings
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config, sim_config_from_dict

RUN_STEPS: Final = 100  # of a simulation, which does not say how long the run is
MOST_INSTANCES: Final = 6  # where nothing says how many one may have
ROOFLINE_PARAMETERS: Final = 1e8  # of smaller models a step is mostly overhead


@dataclass(frozen=True, kw_only=True)
class Workload:
    config: SimConfig
    run_steps: int
    max_instances: int
    measured: bool  # speeds are a run's own
    speeds: str  # where they come from, for a person
    deterministic: bool  # what the run says; kinds of devices must not be mixed then
    worth_per_hour: float  # dollars that an hour sooner is worth

    def with_mean(self, tokens: float) -> "Workload":
        """Change the responses' mean length. Raises ConfigError if lengths were measured."""
        work = self.config.workload
        if work.groups:
            raise ConfigError("--mean_tokens: lengths are those that were measured; leave it out")
        if tokens > work.max_response_tokens:
            raise ConfigError(
                f"--mean_tokens is {tokens:g}, and a response has {work.max_response_tokens} at "
                "most; lower it"
            )
        return replace(
            self, config=replace(self.config, workload=replace(work, mean_tokens=tokens))
        )


def of_config(config: ConfigDictLike) -> Workload:
    """Make the workload of a run's configuration or a simulation's. Raises ConfigError."""
    if not hasattr(config, "to_dict"):
        raise ConfigError(f"get_config() returned {config!r}; it must return the ConfigDict")
    values = config.to_dict()
    if "chip" in values and "workload" in values:
        return _of_simulation(sim_config(config))
    return _of_run(config, values)


def of_workdir(workdir: str | Path, base: Mapping[str, Any], *, settling: int) -> Workload:
    """Make the workload of a recorded run, with its speeds and lengths.

    Args:
        base: a simulation's configuration, for what no run tells.
        settling: steps at the beginning that are left out.

    Raises ConfigError where the run is too short.
    """
    run = read_run_config(workdir)
    seen = observed(workdir, settling=settling)
    found = settings(run, seen, seen.steps, parameters(seen.steps, seen))
    plain = {
        section: {**own, **found.get(section, {})} if isinstance(own, dict) else own
        for section, own in base.items()
    }
    config = sim_config_from_dict(plain)
    return Workload(
        config=replace(config, trainer=replace(config.trainer, lag=run.algorithm.lag)),
        run_steps=run.num_steps,
        max_instances=max(1, run.fleet.max_instances),
        measured=True,
        speeds=f"measured in {len(seen.steps)} steps of {workdir}",
        deterministic=run.deterministic,
        worth_per_hour=run.fleet.worth_per_hour,
    )


def _of_simulation(config: SimConfig) -> Workload:
    kind = "a table of seconds" if config.engine.table else "rooflines of a data sheet"
    return Workload(
        config=config,
        run_steps=RUN_STEPS,
        max_instances=min(config.policy.max_instances, MOST_INSTANCES),
        measured=bool(config.calibration),
        speeds=f"the simulation's: {kind}",
        deterministic=False,
        worth_per_hour=config.policy.worth_per_hour,
    )


def _of_run(config: ConfigDictLike, values: Mapping[str, Any]) -> Workload:
    for section in ("model", "learner", "engine", "fleet", "manager", "sampling", "algorithm"):
        if not isinstance(values.get(section), Mapping):
            raise ConfigError(
                f"the configuration has no section {section!r}; give one that `rlboost train` or "
                "`rlboost simulate` takes"
            )
    h100 = importlib.import_module("rlboost_jax.configs.sim.h100")
    if name := _bounded(values, h100.BOUNDS):
        simulated = h100.simulation(name, h100.BOUNDS[name], own=config)
        speeds = f"bounds of the programs of {name} on H100s, at {h100.REACHED:.0%} of their speed"
    else:
        simulated = _by_rooflines(h100, config, run_config(config))
        speeds = "rooflines of an H100's data sheet, with the shares of configs/sim/base.py"
    simulated.trainer.lag = values["algorithm"]["lag"]
    fleet = values["fleet"]
    return Workload(
        config=sim_config(simulated),
        run_steps=values["num_steps"],
        max_instances=max(1, fleet["max_instances"]),
        measured=False,
        speeds=speeds,
        deterministic=values["deterministic"],
        worth_per_hour=fleet["worth_per_hour"],
    )


def _bounded(values: Mapping[str, Any], bounds: Mapping[str, Any]) -> str:
    """Name the shipped run whose compiled programs a run uses, "" where there is none."""

    def programs(of: Mapping[str, Any]) -> tuple[Any, ...]:
        engine, learner = of["engine"], of["learner"]
        return of["model"], learner["mesh"], engine["tensor_parallel"], engine["slots"]

    for name in bounds:
        shipped = importlib.import_module(f"rlboost_jax.configs.{name}").get_config().to_dict()
        if programs(shipped) == programs(values):
            return name
    return ""


def _by_rooflines(h100: Any, config: Any, run: RunConfig) -> Any:
    model, count = run.model, num_parameters(run.model)
    if model.num_experts or count < ROOFLINE_PARAMETERS:
        what = f"{count:,.0f} parameters" if not model.num_experts else "experts"
        raise ConfigError(
            f"nothing is known of the speed of a model of {what}: rooflines are for dense models "
            f"of {ROOFLINE_PARAMETERS:,.0f} parameters or more; run it for some steps and give "
            "--workdir, or give a simulation's --config with engine.table"
        )
    return h100.by_rooflines(
        config,
        num_params=float(count),
        num_layers=model.num_layers,
        num_query_heads=model.num_query_heads,
        num_key_heads=model.num_key_heads,
        head_dim=model.head_dim,
    )
