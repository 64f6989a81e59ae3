"""The provider that a run has chosen."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple, assert_never

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.providers.base import Provider, Rendezvous
from rlboost_jax.providers.command import CommandLauncher
from rlboost_jax.providers.ec2 import Ec2Launcher
from rlboost_jax.providers.kubernetes.kubernetes_launcher import KubernetesLauncher
from rlboost_jax.providers.launcher import Launcher
from rlboost_jax.providers.local import LocalProvider
from rlboost_jax.providers.none import NoProvider
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.providers.pooled_provider import PooledProvider
from rlboost_jax.providers.skypilot import SkyPilotLauncher
from rlboost_jax.providers.slurm import SlurmLauncher
from rlboost_jax.settings.fleet_config import PROVIDER_IS_GIVEN, FleetConfig
from rlboost_jax.settings.outside import Outside, loaded
from rlboost_jax.settings.pool_config import PoolConfig
from rlboost_jax.settings.pool_fleets import fleet_of

SLURM_SETTLE_SECONDS = 30.0  # until squeue has what sbatch took, at the latest


def open_provider(fleet: FleetConfig, rendezvous: Rendezvous) -> Provider:
    """Open the provider of `fleet.provider`, or those of `fleet.pools`.

    To be called in the event loop that it is used in.
    """
    if fleet.pools:
        return PooledProvider(
            {
                pool.name: partial(open_provider, fleet_of(fleet, pool), of_pool)
                for pool, of_pool in of_pools(fleet, rendezvous)
            }
        )
    provider = _open(fleet, rendezvous)
    if isinstance(provider, PolledProvider):
        provider.keep_to(rendezvous.owns)
    return provider


def of_pools(
    fleet: FleetConfig, rendezvous: Rendezvous
) -> tuple[tuple[PoolConfig, Rendezvous], ...]:
    """Each pool, with its provider's rendezvous."""
    names = tuple(pool.name for pool in fleet.pools)
    return tuple((p, replace(rendezvous, pool=p.name, pools=names)) for p in fleet.pools)


def open_launcher(fleet: FleetConfig, rendezvous: Rendezvous) -> Launcher | None:
    """Open the provider's launcher; None if it has none."""
    way = _way(fleet, rendezvous)
    return way and way.launcher


def _open(fleet: FleetConfig, rendezvous: Rendezvous) -> Provider:
    match chosen := fleet.chosen_provider:
        case "local":
            return LocalProvider(rendezvous, price_per_hour=fleet.price_per_hour)
        case "none":
            return NoProvider()
        case Outside():
            return _from_outside(chosen, fleet, rendezvous)
        case _:
            way = _way(fleet, rendezvous)
            assert way is not None, "a provider without a launcher has a case of its own"
            return PolledProvider(
                way.launcher,
                rendezvous.run_id,
                poll_seconds=way.poll_seconds,
                settle_seconds=way.settle_seconds,
            )


def _from_outside(function: Outside, fleet: FleetConfig, rendezvous: Rendezvous) -> Provider:
    """Open the provider of another package. Raises ConfigError where it makes something else."""
    make, names = loaded(function, PROVIDER_IS_GIVEN)
    made = make(**{name: {"fleet": fleet, "rendezvous": rendezvous}[name] for name in names})
    for method in ("request", "terminate", "list", "events", "close"):
        if not callable(getattr(made, method, None)):
            raise ConfigError(f"{function} makes {type(made).__name__}, which has no {method}()")
    provider: Provider = made
    return provider


class _Way(NamedTuple):
    """A launcher and its polling intervals, as `PolledProvider` takes them."""

    launcher: Launcher
    poll_seconds: float
    settle_seconds: float


def _way(fleet: FleetConfig, rendezvous: Rendezvous) -> _Way | None:
    match fleet.chosen_provider:
        case "local" | "none" | Outside():
            return None
        case "command":
            command, price = fleet.command, fleet.price_per_hour
            starts = CommandLauncher(command, rendezvous, price_per_hour=price)
            return _Way(starts, command.poll_seconds, command.settle_seconds)
        case "slurm":
            poll_seconds = fleet.slurm.poll_seconds
            return _Way(SlurmLauncher(fleet, rendezvous), poll_seconds, SLURM_SETTLE_SECONDS)
        case "kubernetes":  # what the API server took its next list has
            return _Way(KubernetesLauncher(fleet, rendezvous), fleet.kubernetes.poll_seconds, 0.0)
        case "ec2":
            ec2 = fleet.ec2
            return _Way(Ec2Launcher(fleet, rendezvous), ec2.poll_seconds, ec2.settle_seconds)
        case "skypilot":  # what has started its API server lists at once
            return _Way(SkyPilotLauncher(fleet, rendezvous), fleet.skypilot.poll_seconds, 0.0)
        case _ as never:
            assert_never(never)
