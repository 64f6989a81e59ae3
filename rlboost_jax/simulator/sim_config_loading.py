"""A simulation's configuration: from ml_collections to checked records, and back to JSON."""

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import ConfigDictLike, record_from_dict
from rlboost_jax.settings.ranges import objection_to
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import Setting, settings_of
from rlboost_jax.simulator.market.availability import FORMATS, MAX_MACHINES
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.sim_config import InstanceConfig, MarketConfig, PolicyConfig, SimConfig
from rlboost_jax.simulator.systems import SYSTEMS

BASE: Final = "configs/sim/base.py"


def _of_a_run() -> dict[str, Setting]:
    """Map fields of a simulation to the settings of a run that mean the same."""
    known = {setting.name: setting for setting in settings_of(RunConfig)}
    found = {"seed": known["seed"], "trainer.lag": known["algorithm.lag"]}
    sections = {"instance": InstanceConfig, "market": MarketConfig, "policy": PolicyConfig}
    for own, record in sections.items():
        for field in dataclasses.fields(record):
            for section in ("fleet", "manager"):
                if setting := known.get(f"{section}.{field.name}"):
                    found[f"{own}.{field.name}"] = setting
    return found


OF_A_RUN: Final = _of_a_run()  # fields with the meaning and the range of its settings
# All other numbers must be more than 0.
MAY_BE_ZERO: Final = frozenset(
    {
        "num_steps",
        "settling_steps",
        "engine.reserve_ratio",
        "engine.step_overhead_seconds",
        "engine.prefill_token_seconds",
        "engine.most_drafts",
        "engine.draft_acceptance",
        "engine.draft_beyond",
        "engine.draft_earlier",
        "engine.draft_recent",
        "engine.earlier_tokens",
        "engine.draft_seconds",
        "engine.reserved_slots",
        "trainer.token_seconds",
        "trainer.pair_seconds",
        "trainer.begin_seconds",
        "trainer.micro_batch_seconds",
        "trainer.apply_seconds",
        "trainer.switch_seconds",
        "workload.epoch_prompts",
        "workload.sigma",
        "workload.group_correlation",
        "workload.turn_tokens",
        "workload.turn_seconds",
        "links.latency_seconds",
        "links.peer_bytes_per_second",
        "instance.slow_every",
        "instance.start_seconds",
        "instance.detect_seconds",
        "market.keep_seed",
        "policy.kept_tokens",
        "market.hazard.drought_hours",
        "market.hazard.drought_gap_hours",
    }
)
AT_MOST: Final = {
    "engine.memory_fraction": 1.0,
    "engine.reserve_ratio": 1.0,
    "engine.memory_efficiency": 1.0,
    "engine.compute_efficiency": 1.0,
    "engine.draft_acceptance": 1.0,
    "engine.draft_beyond": 1.0,
    "engine.draft_earlier": 1.0,
    "engine.draft_recent": 1.0,
    "trainer.compute_efficiency": 1.0,
    "workload.group_correlation": 1.0,
    "market.keep_fraction": 1.0,
    "engine.dispatch_tokens": 65_535,
    "engine.message_tokens": 65_535,
    "workload.max_response_tokens": 65_535,
}
MAX_CHANGES: Final = 10_000_000  # of a synthetic market
CHOICES: Final = {
    "market.kind": ("static", "trace", "hazard"),
    "market.format": FORMATS,
}


def sim_config(config: ConfigDictLike) -> SimConfig:
    """Make the checked record of a configuration file. Raises ConfigError."""
    if not hasattr(config, "to_dict"):
        raise ConfigError(f"get_config() returned {config!r}; it must return the ConfigDict")
    return sim_config_from_dict(config.to_dict())


def sim_config_from_dict(values: Mapping[str, Any]) -> SimConfig:
    """Make the checked record from nested dictionaries, as `to_dict` and JSON give them.

    Raises ConfigError, a line per mistake.
    """
    record = record_from_dict(values, SimConfig, defaults=BASE)
    if record.calibration:
        record = record_from_dict(calibrated(to_dict(record)), SimConfig, defaults=BASE)
    mistakes = list(_ranges(record, ""))
    if not mistakes:  # the checks of fields against each other may count on the ranges
        mistakes = [*_fit(record), *_market(record)]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return record


def calibrated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace settings by those of the simulation's `calibration` file, section by section.

    Raises ConfigError where the file cannot be read.
    """
    path = values["calibration"]
    try:
        sections = foreign_json.read(Path(path), dict)["settings"]
        changes = {section: dict(own) for section, own in sections.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"calibration: cannot read {path!r} ({type(error).__name__}: {error}); name a file "
            "that `rlboost calibrate` wrote"
        ) from None
    return {
        name: {**value, **changes.get(name, {})} if isinstance(value, dict) else value
        for name, value in values.items()
    } | {"calibration": ""}


def to_dict(config: SimConfig) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(config)
    return values


def _ranges(record: Any, prefix: str) -> Iterator[str]:
    for field in dataclasses.fields(record):
        name, value = prefix + field.name, getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            yield from _ranges(value, name + ".")
        elif name in OF_A_RUN:
            if objection := objection_to(OF_A_RUN[name], value):
                yield f"{name} {objection}"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if name == "workload.growth_per_step":
                if not -0.5 < value < 0.5:
                    yield f"{name} is {value}; choose more than -0.5 and less than 0.5"
            elif not 0 <= value < math.inf or (value == 0 and name not in MAY_BE_ZERO):
                least = "0 or more" if name in MAY_BE_ZERO else "more than 0"
                yield f"{name} is {value}; choose {least}"
            elif value > AT_MOST.get(name, math.inf):
                yield f"{name} is {value}; choose {AT_MOST[name]} or less"
        elif name in CHOICES and value not in CHOICES[name]:
            yield f"{name} {value!r} does not exist; known: {', '.join(CHOICES[name])}"
    if not prefix:
        for system in record.systems:
            if system not in SYSTEMS:
                near = difflib.get_close_matches(system, SYSTEMS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(SYSTEMS)}"
                yield f"systems: {system!r} does not exist; {hint}"
        if not record.systems:
            yield f"systems is empty; name some of {', '.join(SYSTEMS)}"


def _fit(config: SimConfig) -> Iterator[str]:
    work, engine = config.workload, config.engine
    if config.num_engines < 1:
        yield (
            f"engine.chips is {engine.chips}, more than the reserved "
            f"{config.reserved.nodes} x {config.reserved.chips_per_node}; lower it"
        )
    for row in (*engine.table, *engine.reserved_table):
        batch, context, seconds = row
        if not (1 <= batch < math.inf and 0 <= context < math.inf and 0 < seconds < math.inf):
            yield (
                f"engine.table has {row}; give a batch of 1 or more, a context of 0 or more and "
                "seconds of more than 0"
            )
            return
    if not all(0 <= chance <= 1 for chance in engine.draft_acceptances):
        yield f"engine.draft_acceptances is {engine.draft_acceptances}; give chances from 0 to 1"
    for own, name in ((False, "table"), (True, "reserved_table")):
        try:
            EngineRates(config, reserved=own)
        except ValueError as error:
            yield f"engine.{name} is no grid: {error}"
            return
    for group in work.groups:
        if len(group) != work.group_size or min(group) < 1:
            yield (
                f"workload.groups has {group}; give {work.group_size} lengths of 1 or more each, "
                "as many as workload.group_size"
            )
            return
    longest = work.slot_tokens
    if (tokens := EngineRates(config).kv_tokens) < longest:
        yield (
            f"an engine of {engine.chips} chips has room for {tokens:,} cached tokens beside the "
            f"weights, the longest rollout needs {longest:,}; raise engine.chips"
        )
    if work.prompts_per_step < config.trainer.micro_batch_prompts:
        yield (
            f"trainer.micro_batch_prompts is {config.trainer.micro_batch_prompts}; a step has "
            f"only {work.prompts_per_step}"
        )
    if 0 < work.epoch_prompts < work.prompts_per_step:
        yield (
            f"workload.epoch_prompts is {work.epoch_prompts}; a step alone has "
            f"{work.prompts_per_step}"
        )
    if 0 < config.num_steps <= config.settling_steps:
        yield f"settling_steps is {config.settling_steps} of {config.num_steps} steps; lower it"


def _market(config: SimConfig) -> Iterator[str]:
    market = config.market
    if market.kind == "static":
        sizes = market.instances
        if not sizes or not all(0 <= size <= MAX_MACHINES for size in sizes):
            yield f"market.instances is {sizes}; give fleets of 0 to {MAX_MACHINES}"
        if not config.num_steps:
            yield "num_steps is 0 and a static market has no end; give num_steps"
    if market.kind == "trace" and not market.path:
        yield "market.path is ''; name the file of the trace"
    if market.kind == "hazard":
        if not market.segments:
            yield "market.segments is empty; a synthetic market has no end, give (from, to) hours"
        hours = max((end for _, end in market.segments), default=0.0)
        changes = 2 * market.hazard.machines / market.hazard.lifetime_hours * hours
        if market.hazard.machines > MAX_MACHINES:
            yield f"market.hazard.machines is {market.hazard.machines}; choose up to {MAX_MACHINES}"
        if changes > MAX_CHANGES:
            yield (
                f"market.hazard.lifetime_hours is {market.hazard.lifetime_hours}, some "
                f"{changes:,.0f} changes in {hours:g} h; raise it until there are {MAX_CHANGES:,}"
            )
        if market.hazard.batch_size < 1:
            yield f"market.hazard.batch_size is {market.hazard.batch_size}; choose 1 or more"
        if market.hazard.drought_hours and not market.hazard.drought_gap_hours:
            yield "market.hazard.drought_gap_hours is 0; choose more than 0, or no droughts"
    for segment in market.segments:
        if not 0 <= segment[0] < segment[1] < math.inf:
            yield f"market.segments has {segment}; give (from, to) in hours with from before to"
