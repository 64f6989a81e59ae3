"""Settings of preemptible instances: who starts them, how many, what they cost."""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast, get_args

from rlboost_jax.messages import MAX_NOTICE_SECONDS
from rlboost_jax.platform.outside_code import entry_points_of
from rlboost_jax.settings.ec2_config import Ec2Config
from rlboost_jax.settings.kubernetes_config import KubernetesConfig
from rlboost_jax.settings.launchers_config import CommandConfig, SlurmConfig
from rlboost_jax.settings.outside import Outside, outside
from rlboost_jax.settings.pool_config import PoolConfig
from rlboost_jax.settings.setting import setting
from rlboost_jax.settings.skypilot_config import SkyPilotConfig

BuiltInProvider = Literal["local", "none", "command", "slurm", "kubernetes", "ec2", "skypilot"]
Provider = BuiltInProvider | Outside
PROVIDERS: Final = "rlboost_jax.providers"  # group of entry points
PROVIDER_IS_GIVEN: Final = ("fleet", "rendezvous")  # one of another package, by name
Sizing = Literal["fixed", "paper", "marginal"]
Notices = Literal["auto", "none", "aws", "gcp", "azure"]
NoticeSignal = Literal["SIGTERM", "SIGUSR1", "SIGUSR2"]


@dataclass(frozen=True, kw_only=True)
class ChaosConfig:
    """Servers that are taken away and given back at random times."""

    enabled: bool = setting(False, "take servers away and give them back")
    seed: int = setting(0, "seed of the times of losses", at_least=0)
    kills_per_minute: float = setting(8.0, "SIGKILL of a working server", at_least=0)
    terms_per_minute: float = setting(2.0, "SIGTERM of a server", at_least=0)
    joins_per_minute: float = setting(20.0, "return of lost capacity", at_least=0)


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """The preemptible instances.

    See docs/reference/failure-modes.md and docs/explanation/policies.md.
    """

    provider: str = setting(
        "local",
        "who starts servers",
        note="docs/how-to/providers.md has them. A package's own has the name of its entry point "
        "in the group rlboost_jax.providers.",
        choices=get_args(BuiltInProvider),
        outside=True,
        entry_points=PROVIDERS,
    )
    options: dict[str, Any] = setting({}, "settings for a provider of another package")
    max_instances: int = setting(2, "preemptible instances that the provider may start", at_least=0)
    pools: tuple[PoolConfig, ...] = setting(
        (),
        "places that instances come from; (): one, that of provider",
        note='Dictionaries: {"name": "spot", "provider": "slurm", "max_instances": 8, '
        '"price_per_hour": 0.9, "device": "h100", "options": {"partitions": "spot"}}, with options '
        "in place of those of the provider's section. provider, max_instances and price_per_hour "
        "are the pools' own then. docs/how-to/fleet-pools.md has the page.",
    )
    price_command: str = setting(
        "",
        'command that prints prices of pools, lines of POOL PRICE in dollars an hour; "": none',
        note='Split as a shell would, without one: "cat prices.csv" will do. A comma may stand '
        "between the two, or all may be a JSON object; of a pool's lines the last counts.",
    )
    price_seconds: float = setting(
        60.0, "time between runs of price_command, and limit of each", above=0
    )
    sizing: Sizing = setting(
        "fixed",
        "how many preemptible instances are wanted",
        note='"fixed": all. "paper": N_prem of Algorithm 1. "marginal": as many as make tokens '
        "cheapest, with an hour of the run worth worth_per_hour besides what it is paid for.",
    )
    worth_per_hour: float = setting(
        0.0, "what an hour sooner is worth, for marginal; 0: most tokens per dollar", at_least=0
    )
    merge_tail: bool = setting(
        False,
        "collect a step's last work on fewer instances, and release idle ones",
        note="Instances without work for longer than a start takes are released; others are "
        "started in time for the next step.",
    )
    trace: str = setting("", 'CSV of milliseconds,add|remove,name, or "synthetic"; "": none')
    trace_speed: float = setting(60.0, "trace seconds per wall second", above=0)
    synthetic_lifetime_seconds: float = setting(
        1200.0, "mean lifetime of an instance, in trace time", above=0
    )
    synthetic_gap_seconds: float = setting(
        300.0, "mean time until lost capacity returns, in trace time", above=0
    )
    bill_local: bool = setting(
        False,
        "bill servers on the trainer's own host, too, at the prices below",
        note="Without it a fleet of provider local costs nothing. With it the bill is pretended, "
        "unless the host is rented. A limit in dollars, marginal sizing and pools ask for a bill "
        "by themselves.",
    )
    price_per_hour: float = setting(2.66, "price of one preemptible instance", at_least=0)
    reserved_price_per_hour: float = setting(
        10.47, "price of all reserved devices together", at_least=0
    )
    egress_dollars_per_gb: float = setting(
        0.0, "price of 1e9 bytes of weights that an instance pulls", at_least=0
    )
    orphan_seconds: float = setting(
        60.0, "servers and manager wait this long for a lost trainer", at_least=0
    )
    notices: Notices = setting(
        "auto",
        "clouds whose metadata service is asked for preemption notices",
        note='A server started by hand asks its cloud. "auto": asks once who answers.',
    )
    notice_signal: NoticeSignal = setting(
        "SIGTERM", "announces the machine's end, notice_seconds ahead"
    )
    notice_seconds: float = setting(
        0.0,
        "time from notice_signal to the end; 0: SIGTERM asks to leave at once",
        at_least=0,
        at_most=MAX_NOTICE_SECONDS,
    )
    public_address: str = setting(
        "",
        "HOST or HOST:PORT at which servers of other hosts reach the manager",
        note='Behind a translated address or a forwarded port; "": the address that leads out of '
        "the manager's host.",
    )
    wheelhouse: str = setting(
        "",
        "folder of wheels that hosts without the package are served",
        note='docs/how-to/wheelhouse.md makes it. "": none.',
    )
    max_dollars: float = setting(
        0.0,
        "dollars that the run may cost, reserved devices included; 0: no limit",
        note="Then no preemptible instance is started, and the present ones are released: the "
        "run goes on with its reserved devices, which cost what they cost.",
        unit="$",
        at_least=0,
    )
    max_dollars_per_hour: float = setting(
        0.0,
        "dollars that preemptible instances may cost an hour; 0: no limit",
        note="No more are started than price_per_hour allows within it, or their own prices.",
        at_least=0,
    )
    chaos: ChaosConfig
    command: CommandConfig = field(default_factory=CommandConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)
    ec2: Ec2Config = field(default_factory=Ec2Config)
    skypilot: SkyPilotConfig = field(default_factory=SkyPilotConfig)

    @property
    def chosen_provider(self) -> Provider:
        """The provider where there are no pools."""
        if self.provider in get_args(BuiltInProvider):
            return cast(BuiltInProvider, self.provider)
        named = outside("fleet.provider", self.provider)
        path = self.provider if named else entry_points_of(PROVIDERS).get(self.provider, "")
        return Outside("fleet.provider", path)

    @property
    def outside_functions(self) -> tuple[Outside, ...]:
        """The providers of other packages."""
        names = {pool.provider: None for pool in self.pools} or {self.provider: None}
        chosen = (replace(self, provider=name, pools=()).chosen_provider for name in names)
        return tuple(each for each in chosen if isinstance(each, Outside))

    @property
    def name_prefix(self) -> str:
        """The first part of the instances' names."""
        plain = re.sub("[^a-z0-9]+", "-", self.provider.rpartition(":")[2].lower())
        return plain[:24].strip("-") or "server"

    @property
    def billed(self) -> bool:
        """Whether the run has a bill; a fleet on the trainer's own host has none by itself."""
        limits = self.max_dollars or self.max_dollars_per_hour or self.sizing == "marginal"
        return bool(self.bill_local or self.provider != "local" or self.pools or limits)

    def as_billed(self) -> "FleetConfig":
        """Return these settings with the prices that count: 0 where nothing is billed."""
        if self.billed:
            return self
        return replace(self, price_per_hour=0.0, reserved_price_per_hour=0.0)

    @property
    def most_instances(self) -> int:
        """Limit on instances, of all pools together."""
        return sum(p.max_instances for p in self.pools) if self.pools else self.max_instances
