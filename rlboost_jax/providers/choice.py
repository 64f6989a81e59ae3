"""The provider that a run has chosen."""

from dataclasses import replace
from functools import partial
from typing import assert_never

from rlboost_jax.providers.base import Provider, Rendezvous
from rlboost_jax.providers.command import CommandLauncher
from rlboost_jax.providers.ec2 import Ec2Launcher
from rlboost_jax.providers.kubernetes.launcher import KubernetesLauncher
from rlboost_jax.providers.launcher import Launcher
from rlboost_jax.providers.local import LocalProvider
from rlboost_jax.providers.none import NoProvider
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.providers.pools import PooledProvider
from rlboost_jax.providers.skypilot import SkyPilotLauncher
from rlboost_jax.providers.slurm import SlurmLauncher
from rlboost_jax.settings.fleet import FleetConfig
from rlboost_jax.settings.pool_fleets import fleet_of
from rlboost_jax.settings.pools import PoolConfig

SLURM_SETTLE_SECONDS = 30.0  # until squeue has what sbatch took, at the latest


def open_provider(fleet: FleetConfig, rendezvous: Rendezvous) -> Provider:
    """Of `fleet.provider`, or of `fleet.pools`. To be called in the event loop that it is used
    in."""
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
    """Each pool, and what its provider needs to know of the run."""
    names = tuple(pool.name for pool in fleet.pools)
    return tuple((p, replace(rendezvous, pool=p.name, pools=names)) for p in fleet.pools)


def _open(fleet: FleetConfig, rendezvous: Rendezvous) -> Provider:
    match fleet.provider:
        case "local":
            return LocalProvider(rendezvous, price_per_hour=fleet.price_per_hour)
        case "none":
            return NoProvider()
        case "command":
            return PolledProvider(
                open_launcher(fleet, rendezvous),
                rendezvous.run_id,
                poll_seconds=fleet.command.poll_seconds,
                settle_seconds=fleet.command.settle_seconds,
            )
        case "slurm":
            return PolledProvider(
                open_launcher(fleet, rendezvous),
                rendezvous.run_id,
                poll_seconds=fleet.slurm.poll_seconds,
                settle_seconds=SLURM_SETTLE_SECONDS,
            )
        case "kubernetes":
            return PolledProvider(
                open_launcher(fleet, rendezvous),
                rendezvous.run_id,
                poll_seconds=fleet.kubernetes.poll_seconds,
                settle_seconds=0.0,  # what the API server took its next list has
            )
        case "ec2":
            return PolledProvider(
                open_launcher(fleet, rendezvous),
                rendezvous.run_id,
                poll_seconds=fleet.ec2.poll_seconds,
                settle_seconds=fleet.ec2.settle_seconds,
            )
        case "skypilot":
            return PolledProvider(
                open_launcher(fleet, rendezvous),
                rendezvous.run_id,
                poll_seconds=fleet.skypilot.poll_seconds,
                settle_seconds=0.0,  # what has started its API server lists at once
            )
        case _ as never:
            assert_never(never)


def open_launcher(fleet: FleetConfig, rendezvous: Rendezvous) -> Launcher:
    """Of a provider that has one.

    Raises:
        ValueError: it has none.
    """
    if fleet.provider == "command":
        return CommandLauncher(fleet.command, rendezvous, price_per_hour=fleet.price_per_hour)
    if fleet.provider == "slurm":
        return SlurmLauncher(fleet, rendezvous)
    if fleet.provider == "kubernetes":
        return KubernetesLauncher(fleet, rendezvous)
    if fleet.provider == "ec2":
        return Ec2Launcher(fleet, rendezvous)
    if fleet.provider == "skypilot":
        return SkyPilotLauncher(fleet, rendezvous)
    raise ValueError(f"fleet.provider {fleet.provider!r} has no launcher")
