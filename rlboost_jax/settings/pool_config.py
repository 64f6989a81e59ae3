"""Settings of pools: places that preemptible instances come from, several in one run."""

from dataclasses import dataclass, field
from typing import Final

POOL_NAME: Final = "[a-z]([a-z0-9-]{0,22}[a-z0-9])?"  # begins names of instances, of pods too
MOST_POOLS: Final = 32


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """One of `fleet.pools`; see docs/how-to/fleet-pools.md."""

    name: str  # instances are called after it: "spot-3"
    provider: str = "local"  # one of fleet.provider's choices
    max_instances: int = 1
    price_per_hour: float = 2.66  # dollars, of one instance, until `fleet.price_command` says
    zone: str = ""  # for people, and for the provider where its section has a setting `zone`
    device: str = ""  # kind of accelerator, for people: other kinds have other bits; "": not said
    # Settings of its provider's section that replace `fleet_config.<provider>`'s: {"partitions":
    # "spot"}.
    options: dict[str, bool | int | float | str] = field(default_factory=dict, hash=False)
