"""What the market of a configuration gives and takes, and when."""

from dataclasses import dataclass

from rlboost_jax.config.traces import TraceRow
from rlboost_jax.simulator.availability import cut, keep, read_availability
from rlboost_jax.simulator.hazard import HOUR, draw
from rlboost_jax.simulator.records import MarketConfig


@dataclass(frozen=True, slots=True)
class Change:
    """One machine more, or one less."""

    seconds: float
    added: bool
    machine: str


@dataclass(frozen=True, kw_only=True)
class Market:
    name: str  # for tables
    instances: int | None  # of a static fleet
    seconds: float  # how long it lasts; inf: as long as is wanted
    changes: tuple[Change, ...]


def static(instances: int, seconds: float = float("inf")) -> Market:
    """A fleet that never changes."""
    changes = tuple(Change(0.0, True, f"machine{i + 1}") for i in range(instances))
    return Market(
        name=f"{instances} instances", instances=instances, seconds=seconds, changes=changes
    )


def markets(config: MarketConfig, *, seed: int) -> tuple[Market, ...]:
    """Each is simulated by itself.

    Raises ConfigError where a trace cannot be read.
    """
    if config.kind == "static":
        return tuple(static(count) for count in config.instances)
    if config.kind == "trace":
        rows = read_availability(config.path, config.format)
        rows = keep(rows, config.keep_fraction, config.keep_seed)
    else:
        hours = max((end for _, end in config.segments), default=0.0)
        rows = draw(config.hazard, hours=hours, seed=seed)
    last = rows[-1].milliseconds / HOUR
    segments = config.segments or ((0.0, last),)
    return tuple(_segment(rows, begin, end) for begin, end in segments)


def mean_alive(changes: tuple[Change, ...], seconds: float) -> float:
    """Machines on loan, averaged over the time."""
    signed = sum((1 if c.added else -1) * (seconds - min(c.seconds, seconds)) for c in changes)
    return signed / seconds


def _segment(rows: tuple[TraceRow, ...], begin: float, end: float) -> Market:
    changes = tuple(
        Change(row.milliseconds / 1000, row.action == "add", row.name)
        for row in cut(rows, begin * HOUR, end * HOUR)
    )
    return Market(
        name=f"{begin:g}-{end:g} h",
        instances=None,
        seconds=(end - begin) * 3600,
        changes=changes,
    )
