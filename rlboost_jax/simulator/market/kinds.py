"""The kinds of machines that a simulated market has: speed, price, start-up and notice of each.

A machine is named `KIND/…`, as the manager names those that are lent for a pool; one without a
kind's name is of the kind "", which is what the configuration says of its instances.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from rlboost_jax.settings.pool_config import PoolConfig
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.sim_config import SimConfig

DEVICE = "simulated"  # of what the configuration says


@dataclass(frozen=True, kw_only=True)
class MachineKind:
    """A kind of machine that can be bought by the hour."""

    rates: EngineRates
    device: str
    zone: str
    price_per_hour: float  # dollars
    start_seconds: float  # from the order to the first message; billed
    notice_seconds: float  # before a loss
    egress_dollars_per_gb: float


@dataclass(frozen=True, kw_only=True)
class Machines:
    """All kinds of a market, by name, and the device of the learner."""

    kinds: Mapping[str, MachineKind]
    reserved_device: str
    pools: tuple[PoolConfig, ...] = ()  # of the manager, each of a kind's name; (): it has one

    @staticmethod
    def of(config: SimConfig) -> "Machines":
        """Make the market of a configuration, which has one kind."""
        instance = config.instance
        kind = MachineKind(
            rates=EngineRates(config),
            device=DEVICE,
            zone="",
            price_per_hour=instance.price_per_hour,
            start_seconds=instance.start_seconds,
            notice_seconds=config.market.notice_seconds,
            egress_dollars_per_gb=instance.egress_dollars_per_gb,
        )
        return Machines(kinds={"": kind}, reserved_device=DEVICE)

    @property
    def start_seconds(self) -> float:
        """Start-up time that a manager expects before it has seen an instance start."""
        return statistics.fmean(kind.start_seconds for kind in self.kinds.values())

    @property
    def price_per_hour(self) -> float:
        return statistics.fmean(kind.price_per_hour for kind in self.kinds.values())

    @property
    def notice_seconds(self) -> float:
        return max(kind.notice_seconds for kind in self.kinds.values())


def machine_name(kind: str, number: int | str) -> str:
    return f"{kind}/{number}"


def kind_name(machine: str) -> str:
    """Return the name of a machine's kind."""
    return machine.rpartition("/")[0]
