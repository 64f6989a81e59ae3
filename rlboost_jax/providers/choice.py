"""The provider that a run has chosen."""

from typing import assert_never

from rlboost_jax.providers.base import Provider, Rendezvous
from rlboost_jax.providers.local import LocalProvider
from rlboost_jax.providers.none import NoProvider
from rlboost_jax.settings.fleet import FleetConfig


def open_provider(fleet: FleetConfig, rendezvous: Rendezvous) -> Provider:
    """Of `fleet.provider`. To be called in the event loop that it is used in."""
    match fleet.provider:
        case "local":
            return LocalProvider(rendezvous, price_per_hour=fleet.price_per_hour)
        case "none":
            return NoProvider()
        case _ as never:
            assert_never(never)
