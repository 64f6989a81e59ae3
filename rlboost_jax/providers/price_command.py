"""Current prices of pools, from a command of the user's: `fleet.price_command`."""

import asyncio
import logging
import math
import os
import shlex
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.mistakes import plain
from rlboost_jax.providers.external_program import run_program
from rlboost_jax.providers.launcher import LaunchFailed
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.foreign_keys import report_unknown

MOST_PRICE = 100_000.0  # dollars per hour; more is a mistake

log = logging.getLogger(__name__)


async def prices(fleet: FleetConfig) -> AsyncIterator[tuple[str, float]]:
    """Yield each pool's price whenever the command has printed it, without end.

    A command that fails leaves prices as they are, and is run again.
    """
    pools = {pool.name for pool in fleet.pools}
    problem = ""
    while fleet.price_command:
        try:
            out = await run_program(
                shlex.split(fleet.price_command),
                timeout_seconds=fleet.price_seconds,
                environment=os.environ,
            )
            found, now = prices_in(out), ""
        except (LaunchFailed, ValueError) as error:
            found, now = {}, str(error)
        if now and now != problem:
            log.warning("fleet.price_command: %s; prices stay what they are", now)
        problem = now
        report_unknown(found, pools, "fleet.price_command, of no pool in fleet.pools")
        for name, price in found.items():
            if name in pools:
                yield name, price
        await asyncio.sleep(fleet.price_seconds)


def prices_in(text: str) -> Mapping[str, float]:
    """Parse dollars per hour by pool, from lines of POOL PRICE or a JSON object.

    Raises:
        ValueError: a line is none, or a price cannot be.
    """
    text = text.removeprefix("\ufeff").strip()
    if text.startswith("{"):
        pairs: Any = foreign_json.decode(text, "its output", dict).items()
    else:
        lines = (line.replace(",", " ").split() for line in text.splitlines())
        pairs = [(w[0], " ".join(w[1:])) for w in lines if w and not w[0].startswith("#")]
    found: dict[str, float] = {}
    for name, value in pairs:
        try:
            price = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"{plain(name)} {plain(repr(value))} is no line of POOL PRICE"
            ) from None
        if not 0 <= price <= MOST_PRICE or math.isnan(price):
            raise ValueError(
                f"{plain(name)} costs {price:g}; 0 to {MOST_PRICE:g} dollars are possible"
            )
        found[name] = price
    return found
