"""Name and task of a run's SkyPilot cluster; the name is its tag.

Credentials are secrets of the task: SkyPilot shows them nowhere. It keeps them in the database of
its API server, and in a file of the cluster's own user.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlboost_jax.providers.base import NONCE_VARIABLE
from rlboost_jax.settings.skypilot_config import SkyPilotConfig
from rlboost_jax.trust.credentials import JOIN_VARIABLE

TAG: Final = "rlboost"
DOT: Final = "."  # no run, name or nonce has one

# A job's shell becomes the server; the limit ends it where nobody else does.
RUN: Final = """\
zone=$(printf %s "${{SKYPILOT_CLUSTER_INFO-}}" |
    sed -n 's/.*"cloud": *"\\([^"]*\\)".*"region": *"\\([^"]*\\)".*/\\1\\/\\2/p')
exec timeout --kill-after=60 {minutes}m {program} --manager={manager} --name={name} \\
    --price={price:g} --zone="${{zone:-skypilot}}"
"""


def cluster_of(run: str, name: str, nonce: str) -> str:
    """Name of a cluster: letters, digits, "-" and "_" in three parts."""
    return DOT.join((TAG, run, name, nonce))


def tag_of(cluster: str) -> tuple[str, str, str] | None:
    """Run, name and nonce; None if the cluster is not ours."""
    parts = cluster.split(DOT)
    if len(parts) != 4 or parts[0] != TAG:
        return None
    return parts[1], parts[2], parts[3]


def task_of(
    sky: SkyPilotConfig,
    own: Mapping[str, Any],
    *,
    infra: Sequence[str],
    name: str,
    nonce: str,
    manager: str,
    join: str,
    price_per_hour: float,
) -> dict[str, Any]:
    """Build a task in SkyPilot's form.

    Args:
        own: the user's.
        infra: clouds; the cheapest is taken. None: as the user's task says.
        join: credentials as one word.
    """
    resources = dict(own.get("resources") or {})
    if infra:
        resources.pop("infra", None)
        resources["any_of"] = [{"infra": each} for each in infra]
    resources.setdefault("use_spot", True)
    run = RUN.format(
        minutes=sky.minutes,
        program=shlex.join(shlex.split(sky.program)),
        manager=shlex.quote(manager),
        name=shlex.quote(name),
        price=price_per_hour,
    )
    return {
        **own,
        "name": name,
        "num_nodes": 1,
        "resources": resources,
        "envs": {**(own.get("envs") or {}), NONCE_VARIABLE: nonce},
        "secrets": {**(own.get("secrets") or {}), JOIN_VARIABLE: join},
        "run": run,
    }
