"""A pool as a fleet of its own: the run's settings of the fleet with the pool's in their place.

So a pool's provider is opened, checked and asked like that of a run with one pool.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import msgspec

from rlboost_jax.platform.mistakes import ConfigError, suggestion
from rlboost_jax.settings.fleet_config import BuiltInProvider, FleetConfig
from rlboost_jax.settings.pool_config import MOST_POOLS, POOL_NAME, PoolConfig
from rlboost_jax.settings.ranges import objection_to
from rlboost_jax.settings.setting import settings_of

Check = Callable[[FleetConfig], Iterator[str]]


def fleet_of(fleet: FleetConfig, pool: PoolConfig) -> FleetConfig:
    """Return the fleet with a pool's settings in place of its own.

    Raises ConfigError where the pool's options are none of its provider's section.
    """
    section = getattr(fleet, pool.provider, None)
    own: dict[str, Any] = {}
    if pool.provider not in get_args(BuiltInProvider):
        own = {"options": dict(pool.options)}
    elif is_dataclass(section) and not isinstance(section, type):
        known = {each.name for each in fields(section)}
        values: dict[str, Any] = {"zone": pool.zone} if pool.zone and "zone" in known else {}
        values |= pool.options
        for key in values:
            if key not in known:
                raise ConfigError(f"{key!r} does not exist; {suggestion(key, tuple(known))}")
        try:
            own = {
                pool.provider: msgspec.convert(
                    {**msgspec.to_builtins(section), **values}, type(section)
                )
            }
        except msgspec.ValidationError as error:
            raise ConfigError(str(error).replace(" - at `$.", ", at `")) from None
    elif pool.options:
        raise ConfigError(f"provider {pool.provider!r} has no settings of its own")
    return replace(
        fleet,
        provider=pool.provider,
        max_instances=pool.max_instances,
        price_per_hour=pool.price_per_hour,
        pools=(),
        **own,
    )


def pool_mistakes(fleet: FleetConfig, check: Check) -> Iterator[str]:
    """Yield a line per mistake in the settings of pools.

    Args:
        check: yields the mistakes of a fleet with one provider.
    """
    names = [pool.name for pool in fleet.pools]
    if len(names) > MOST_POOLS:
        yield f"fleet.pools has {len(names)} pools; the limit is {MOST_POOLS}, leave some out"
    for number, pool in enumerate(fleet.pools):
        place = f"fleet.pools[{number}] ({pool.name!r})"
        if not re.fullmatch(POOL_NAME, pool.name) or pool.name == "any":
            yield (
                f"{place}: a name has up to 24 of a-z, 0-9 and -, a letter first and no - last, "
                "and is not 'any'; choose another"
            )
        if names.index(pool.name) < number:
            yield f"{place}: another pool is called so; name each of them once"
        for mistake in _of_pool(fleet, pool, check):
            yield f"{place}: {mistake}"
    yield from _price_command(fleet)


def _of_pool(fleet: FleetConfig, pool: PoolConfig, check: Check) -> Iterator[str]:
    known = {each.name: each for each in settings_of(FleetConfig)}
    wrong = False
    for name in ("provider", "max_instances", "price_per_hour"):
        if objection := objection_to(known[name], getattr(pool, name)):
            yield f"{name} {objection}"
            wrong = True
    if pool.provider == "none":
        yield "provider 'none' starts no servers; who is started by hand needs no pool"
        wrong = True
    if wrong:
        return
    try:
        own = fleet_of(fleet, pool)
    except ConfigError as error:
        yield f"options: {error}"
        return
    for each in settings_of(FleetConfig):
        section, _, name = each.name.rpartition(".")
        if section == pool.provider:
            objection = objection_to(each, getattr(getattr(own, section), name))
            if objection:
                yield f"options: {name} {objection}"
                wrong = True
    if not wrong:
        yield from check(own)


def _price_command(fleet: FleetConfig) -> Iterator[str]:
    try:
        words = shlex.split(fleet.price_command)
    except ValueError as error:
        yield f"fleet.price_command is {fleet.price_command!r}: {error}"
        return
    if words and not fleet.pools:
        yield "fleet.price_command gives prices of pools, and fleet.pools is (); name pools"


def mixed(fleet: FleetConfig) -> bool:
    """Whether the pools' instances may differ in speed or price."""
    kinds = {(pool.provider, pool.device, pool.price_per_hour) for pool in fleet.pools}
    return len(kinds) > 1


def device_kinds(fleet: FleetConfig) -> tuple[str, ...]:
    """List the kinds of devices that pools name, each once."""
    return tuple(dict.fromkeys(pool.device for pool in fleet.pools if pool.device))
