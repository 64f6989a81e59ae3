"""A price list: what machines there are to buy, in TOML. docs/how-to/plan.md has the fields.

`configs/sim/prices.toml` is an example of one: tables [[instances]] and [[reserved]], and a date.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from rlboost_jax.platform.bounded_files import read_text
from rlboost_jax.platform.mistakes import ConfigError, suggestion
from rlboost_jax.settings.fleet_config import BuiltInProvider
from rlboost_jax.settings.pool_config import POOL_NAME
from rlboost_jax.settings.shipped import FOLDER, OF_SIMULATIONS
from rlboost_jax.simulator.market.availability import read_availability

EXAMPLE_FILE: Final = FOLDER / OF_SIMULATIONS / "prices.toml"
PROVIDERS: Final = tuple(name for name in get_args(BuiltInProvider) if name != "none")
MOST_BYTES: Final = 2**20  # of a list
MOST_TYPES: Final = 32
MOST_INSTANCES: Final = 64  # of one type
MOST_LOSSES: Final = 3600.0  # an hour


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """Preemptible instances of one shape in one zone."""

    name: str
    price_per_hour: float  # dollars, of one instance
    max_instances: int = 4  # that can be had at once
    provider: str = "local"  # that starts them, for fleet.pools
    zone: str = ""
    device: str = ""  # of a data sheet, or any name; "": the configuration's own
    chips: int = 0  # of an instance; 0: as many as the configuration's engine has
    speed: float = 0.0  # times the configuration's engine; 0: by data sheets
    tokens_per_second: float = 0.0  # of one instance with all slots taken; 0: by speed
    losses_per_hour: float = 0.0  # of one instance
    away_seconds: float = 0.0  # from a loss until another can be had, on average
    trace: str = ""  # availability over time, in place of the two; beside the price list
    start_seconds: float = 60.0  # from the order to the first message
    notice_seconds: float = 0.0  # before a loss
    egress_dollars_per_gb: float = 0.0  # of weights that are sent there
    options: dict[str, bool | int | float | str] = field(default_factory=dict)  # of fleet.pools


@dataclass(frozen=True, kw_only=True)
class ReservedShape:
    """Machines that the learner may run on."""

    name: str
    price_per_hour: float  # dollars, of all of it
    nodes: int = 1
    chips_per_node: int = 8
    device: str = ""  # "": the configuration's own
    speed: float = 0.0  # of the learner, times the configuration's; 0: by FLOPs of data sheets


@dataclass(frozen=True, kw_only=True)
class PriceList:
    instances: tuple[InstanceType, ...] = ()
    reserved: tuple[ReservedShape, ...] = ()
    date: str = ""  # of the prices


def read_prices(path: str | Path) -> PriceList:
    """Read and check a price list. Raises ConfigError, a line per mistake."""
    try:
        values = tomllib.loads(read_text(Path(path), MOST_BYTES, "a price list"))
    except OSError as error:
        raise ConfigError(f"--prices={path}: {error.strerror}; name a price list") from None
    except RecursionError:
        raise ConfigError(f"--prices={path}: lists in lists too deep to be a price list") from None
    except ValueError as error:  # Unreadable and TOMLDecodeError are
        raise ConfigError(f"--prices={path}: {error}; docs/how-to/plan.md has an example") from None
    mistakes = list(_wrong_keys(values))
    if isinstance(values.get("date"), date):
        values["date"] = values["date"].isoformat()
    if not mistakes:
        try:
            found = msgspec.convert(values, PriceList)
        except msgspec.ValidationError as error:
            mistakes = [str(error).replace(" - at `$.", ", at `")]
        else:
            found = _with_traces(found, Path(path).parent)
            mistakes = list(_mistakes(found))
    if mistakes:
        raise ConfigError("\n".join(f"--prices={path}: {mistake}" for mistake in mistakes))
    return found


def _with_traces(prices: PriceList, folder: Path) -> PriceList:
    """Resolve traces' paths relative to the list's folder."""
    instances = tuple(
        replace(each, trace=str(folder / each.trace)) if each.trace else each
        for each in prices.instances
    )
    return replace(prices, instances=instances)


def _wrong_keys(values: dict[str, Any]) -> Iterator[str]:
    tables = {"instances": InstanceType, "reserved": ReservedShape}
    yield from _unknown(values, [each.name for each in fields(PriceList)], "")
    for name, record in tables.items():
        entries = values.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            yield f"{name} is no list of tables; write [[{name}]] before each"
            continue
        for number, entry in enumerate(entries):
            known = [each.name for each in fields(record)]
            yield from _unknown(entry, known, f" of {name}[{number}]")


def _unknown(values: dict[str, Any], known: Sequence[str], place: str) -> Iterator[str]:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            yield f"{key}{place} does not exist; {hint}"


_RANGES: Final = {  # least and most, for both kinds of entries
    "price_per_hour": (0, 1e6),
    "max_instances": (1, MOST_INSTANCES),
    "chips": (0, 1024),
    "speed": (0, 1e3),
    "tokens_per_second": (0, 1e9),
    "losses_per_hour": (0, MOST_LOSSES),
    "away_seconds": (0, 1e6),
    "start_seconds": (0, 1e5),
    "notice_seconds": (0, 1e4),
    "egress_dollars_per_gb": (0, 1e3),
    "nodes": (1, 4096),
    "chips_per_node": (1, 1024),
}


def _mistakes(prices: PriceList) -> Iterator[str]:
    if not prices.instances:
        yield "no [[instances]]; name one type at least"
    if len(prices.instances) > MOST_TYPES:
        yield f"{len(prices.instances)} [[instances]]; the limit is {MOST_TYPES}, leave some out"
    entries: list[InstanceType | ReservedShape] = [*prices.instances, *prices.reserved]
    names = [each.name for each in entries]
    for each in entries:
        if not re.fullmatch(POOL_NAME, each.name):
            yield f"name {each.name!r}: up to 24 of a-z, 0-9 and -, a letter first, no - last"
        if names.count(each.name) > 1:
            yield f"name {each.name!r} is given {names.count(each.name)} times; give it once"
        for key, (least, most) in _RANGES.items():
            value = getattr(each, key, least)
            if not least <= value <= most or math.isnan(value):
                yield f"{key} of {each.name!r} is {value}; choose {least:,} to {most:,.0f}"
    for kind in prices.instances:
        yield from _of_instances(kind)


def _of_instances(each: InstanceType) -> Iterator[str]:
    if each.provider not in PROVIDERS:
        hint = suggestion(each.provider, PROVIDERS)
        yield f"provider of {each.name!r} {each.provider!r} does not exist; {hint}"
    if each.speed and each.tokens_per_second:
        yield f"{each.name!r} has speed and tokens_per_second; give one of them"
    if each.trace and (each.losses_per_hour or each.away_seconds):
        yield f"{each.name!r} has a trace and losses_per_hour or away_seconds; give one of them"
    if each.trace:
        try:
            rows = read_availability(each.trace)
        except ConfigError as error:
            yield f"trace of {each.name!r}: {str(error).removeprefix('market.path: ')}"
            return
        if not rows[-1].milliseconds:
            yield f"trace of {each.name!r}: {each.trace!r} ends as it begins; give a longer one"
