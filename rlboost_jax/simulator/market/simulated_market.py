"""What the market of a configuration gives and takes, and when."""

from dataclasses import dataclass

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.traces import TraceRow
from rlboost_jax.simulator.market.availability import cut, keep, read_availability
from rlboost_jax.simulator.market.hazard import HOUR, draw
from rlboost_jax.simulator.sim_config import MarketConfig

Segments = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class MachineChange:
    """One machine arrives or is lost."""

    seconds: float
    added: bool
    machine: str


@dataclass(frozen=True, kw_only=True)
class Market:
    name: str  # for tables
    instances: int | None  # of a static fleet
    seconds: float  # how long it lasts; inf: as long as is wanted
    changes: tuple[MachineChange, ...]


def static(instances: int, seconds: float = float("inf")) -> Market:
    """Make the market of a fleet that never changes."""
    changes = tuple(MachineChange(0.0, True, f"machine{i + 1}") for i in range(instances))
    return Market(
        name=f"{instances} instances", instances=instances, seconds=seconds, changes=changes
    )


def markets(config: MarketConfig, *, seed: int) -> tuple[Market, ...]:
    """List the markets of a configuration, each of which is simulated by itself.

    Raises ConfigError where a trace cannot be read, or has nothing where it is looked at.
    """
    if config.kind == "static":
        return tuple(static(count) for count in config.instances)
    if config.kind == "trace":
        rows, segments = _trace(config)
    else:
        segments = config.segments
        hours = max(end for _, end in segments)
        rows = draw(config.hazard, hours=hours, seed=seed)
    return tuple(_segment(rows, begin, end) for begin, end in segments)


def _trace(config: MarketConfig) -> tuple[tuple[TraceRow, ...], Segments]:
    """Return the trace's kept machines, and the segments to simulate."""
    rows = read_availability(config.path, config.format)
    last = rows[-1].milliseconds / HOUR
    kept = keep(rows, config.keep_fraction, config.keep_seed)
    if not kept:
        machines = len({row.name for row in rows})
        raise ConfigError(
            f"market.keep_fraction is {config.keep_fraction}, which keeps none of the {machines} "
            f"machines of {config.path!r}; raise it"
        )
    if not config.segments and not last:
        raise ConfigError(
            f"market.path: {config.path!r} ends as it begins; give market.segments in hours"
        )
    for segment in config.segments:
        if segment[0] >= last > 0:
            raise ConfigError(
                f"market.segments has {segment}, and {config.path!r} ends at {last:.4g} h; "
                "choose an earlier one"
            )
    return kept, config.segments or ((0.0, last),)


def _segment(rows: tuple[TraceRow, ...], begin: float, end: float) -> Market:
    changes = tuple(
        MachineChange(row.milliseconds / 1000, row.action == "add", row.name)
        for row in cut(rows, begin * HOUR, end * HOUR)
    )
    return Market(
        name=f"{begin:g}-{end:g} h",
        instances=None,
        seconds=(end - begin) * 3600,
        changes=changes,
    )
