"""Settings of servers that SkyPilot starts, and what is wrong with them."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlboost_jax.settings.launchers_config import names_of
from rlboost_jax.settings.setting import setting

# No extra of ours: its bounds do not go with those of others.
INSTALL: Final = "`pip install 'skypilot>=0.14,<0.15'` beside rlboost-jax, without its lock"
_INFRA: Final = re.compile(r"[a-z0-9]+(/[\w.*-]+){0,2}")


@dataclass(frozen=True, kw_only=True)
class SkyPilotConfig:
    """One SkyPilot cluster of one node for each server. docs/how-to/fleet-skypilot.md has it."""

    task: str = setting(
        "",
        "file in SkyPilot's form: resources, setup, files of a server",
        note="Its run is not used, and num_nodes is 1.",
    )
    infra: str = setting(
        "",
        "clouds, regions or zones, comma-separated: aws,gcp/us-central1,kubernetes",
        note='Each is a pool. "": what the task says, or any that is enabled.',
    )
    program: str = setting("rlboost rollout", "program of the server, once setup has run")
    minutes: int = setting(
        1440,
        "time after which a server and its cluster end",
        unit="min",
        note="The manager asks for another one then. It bounds what a forgotten one costs.",
        at_least=1,
    )
    idle_minutes: int = setting(
        1, "time from a server's end until its cluster takes itself down", unit="min", at_least=0
    )
    start_seconds: float = setting(
        900.0, "time for a cluster to be up, setup included; then it is taken down", above=0
    )
    timeout_seconds: float = setting(60.0, "time limit of an answer of the API server", above=0)
    poll_seconds: float = setting(10.0, "time between lists of clusters", above=0)


def skypilot_mistakes(sky: SkyPilotConfig) -> Iterator[str]:
    """Yield a line per mistake in the settings of the provider "skypilot"."""
    if importlib.util.find_spec("sky") is None:
        yield f'fleet.provider is "skypilot", which needs skypilot; {INSTALL}'
    if not sky.task:
        yield (
            "fleet.skypilot.task is ''; name a file with resources and setup, "
            "docs/how-to/fleet-skypilot.md has one"
        )
    elif not Path(sky.task).is_file():
        yield f"fleet.skypilot.task is {sky.task!r}, which is no file"
    for name in names_of(sky.infra):
        if not _INFRA.fullmatch(name):
            yield f"fleet.skypilot.infra has {name!r}, which is not like aws or gcp/us-central1"
    try:
        if not shlex.split(sky.program):
            yield "fleet.skypilot.program is ''; it is the server's, such as rlboost rollout"
    except ValueError as error:
        yield f"fleet.skypilot.program is {sky.program!r}: {error}"
