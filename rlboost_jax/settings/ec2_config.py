"""Settings of servers on Amazon's EC2, and what is wrong with them."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

from rlboost_jax.platform.mistakes import install
from rlboost_jax.settings.launchers_config import names_of
from rlboost_jax.settings.setting import setting

Market = Literal["spot", "on_demand"]

MOST_POOLS: Final = 300  # that one request to EC2 may name
MOST_SETUP: Final = 8000  # characters; EC2 takes 16 KiB of user data, ours among them
_TYPE: Final = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_SUBNET: Final = re.compile(r"subnet-[0-9a-f]+")
_ZONE: Final = re.compile(r"[a-z]{2}(-[a-z0-9]+)+-\d[a-z]")
_GROUP: Final = re.compile(r"sg-[0-9a-f]+")


@dataclass(frozen=True, kw_only=True)
class Ec2Config:
    """One EC2 instance for each server. docs/how-to/fleet-ec2.md has the page."""

    image: str = setting(
        "",
        "image with the server's program: an AMI, or resolve:ssm: and the parameter that names it",
        note='"": that of launch_template.',
    )
    types: str = setting("", "acceptable instance types, comma-separated: g6.xlarge,g5.xlarge")
    places: str = setting(
        "",
        "subnets or availability zones, comma-separated",
        note='Each type in each place is a pool. "": the default subnet of any zone.',
    )
    market: Market = setting("spot", "how instances are bought")
    max_price: float = setting(
        0.0,
        "highest price per hour of a spot instance; 0: the on-demand price",
        unit="$/h",
        at_least=0,
    )
    region: str = setting("", 'region of all instances; "": that of AWS\'s own configuration')
    security_groups: str = setting("", "ids of security groups, comma-separated")
    key: str = setting("", "name of a key pair, to log in with")
    profile: str = setting(
        "",
        "name or ARN of an instance profile, which may read the run's credentials",
        note="docs/how-to/fleet-ec2.md has its policy.",
    )
    launch_template: str = setting(
        "",
        "launch template (name or id) for what has no setting here",
        note="With :VERSION; left out: its default version. Its user data is not used.",
    )
    tags: str = setting("", "tags besides the run's own: team=rl,cost-center=7")
    minutes: int = setting(
        1440,
        "time after which an instance ends itself",
        unit="min",
        note="The manager asks for another one then. It bounds what a forgotten one costs.",
        at_least=1,
    )
    setup: str = setting("", "shell lines before the server starts, as root on its machine")
    program: str = setting("rlboost rollout", "program of the server, on that image")
    timeout_seconds: float = setting(30.0, "time limit of an answer of AWS", above=0)
    poll_seconds: float = setting(5.0, "time between lists of instances", above=0)
    settle_seconds: float = setting(
        60.0, "time after a start until a list has it, or it has failed", at_least=0
    )


def pools_of(ec2: Ec2Config) -> dict[str, dict[str, str]]:
    """Return EC2's terms for each pool, by its name: "g6.xlarge" or "g6.xlarge/us-east-1a"."""
    types, places = names_of(ec2.types), names_of(ec2.places)
    if not places:
        return {each: {"InstanceType": each} for each in types}
    return {
        f"{each}/{place}": {"InstanceType": each, _kind(place): place}
        for each, place in product(types, places)
    }


def tags_of(ec2: Ec2Config) -> dict[str, str]:
    """Parse the tags that the user asked for in `fleet.ec2.tags`."""
    pairs = (each.partition("=") for each in names_of(ec2.tags))
    return {key.strip(): value.strip() for key, _, value in pairs}


def ec2_mistakes(ec2: Ec2Config) -> Iterator[str]:
    """Yield a line per mistake in the settings of the provider "ec2"."""
    if importlib.util.find_spec("boto3") is None:
        yield f'fleet.provider is "ec2", which needs boto3; {install("ec2")}'
    if not ec2.image and not ec2.launch_template:
        yield "fleet.ec2.image is '' and so is fleet.ec2.launch_template; name one of them"
    if not names_of(ec2.types):
        yield "fleet.ec2.types is ''; name instance types, such as g6.xlarge,g5.xlarge"
    if not ec2.profile and not ec2.launch_template:
        yield (
            "fleet.ec2.profile is ''; instances read their credentials by an instance profile, "
            "docs/how-to/fleet-ec2.md has its policy"
        )
    for what, kinds, example in (
        ("types", (_TYPE,), "g6.xlarge"),
        ("places", (_SUBNET, _ZONE), "subnet-0123abcd or us-east-1a"),
        ("security_groups", (_GROUP,), "sg-0123abcd"),
    ):
        for name in names_of(getattr(ec2, what)):
            if not any(kind.fullmatch(name) for kind in kinds):
                yield f"fleet.ec2.{what} has {name!r}, which is not like {example}"
    if len(pools := pools_of(ec2)) > MOST_POOLS:
        yield (
            f"fleet.ec2.types and places make {len(pools)} pools, of which EC2 takes {MOST_POOLS}; "
            "name fewer of either"
        )
    for each in names_of(ec2.tags):
        key, equals, _ = each.partition("=")
        if not equals or not key.strip() or key.startswith(("rlboost:", "aws:")):
            yield f"fleet.ec2.tags has {each!r}; it takes KEY=VALUE, and no KEY of rlboost: or aws:"
    if len(ec2.setup) > MOST_SETUP:
        yield f"fleet.ec2.setup has {len(ec2.setup)} characters, more than {MOST_SETUP}"
    try:
        if not shlex.split(ec2.program):
            yield "fleet.ec2.program is ''; it is the server's, such as rlboost rollout"
    except ValueError as error:
        yield f"fleet.ec2.program is {ec2.program!r}: {error}"


def _kind(place: str) -> str:
    return "SubnetId" if place.startswith("subnet-") else "AvailabilityZone"
