"""Requests for and releases of instances in each of several pools, see `policies.pool_choice`."""

import math
from collections.abc import Mapping

from rlboost_jax.manager.policies.pool_choice import (
    PoolOffer,
    PoolRun,
    chosen,
    mix,
    ranked,
    surplus,
    wake_at,
)
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.owners import Owners


class Purchases:
    """Choices among pools, by speed, price and holds.

    Attributes:
        wake_at: when a pool may be asked again that was not, since its pause was not over.
        step_seconds: of a step; 0: none was seen.
    """

    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._settings = settings.fleet
        self._by_margin = settings.fleet.sizing == "marginal"
        self._fleet = owners.fleet
        self._pools = owners.pools
        self._roster = owners.roster
        self._versions = owners.versions
        self.wake_at = math.inf
        self.step_seconds = 0.0

    def learn(self, step_seconds: float) -> None:
        """Set the duration of a step."""
        self.step_seconds = step_seconds

    @property
    def pull(self) -> float:
        """Dollars to send one instance the weights of a version."""
        newest = self._versions.newest
        snapshot = 0 if newest is None else newest.num_bytes
        return self._settings.egress_dollars_per_gb * snapshot / 1e9

    @property
    def offers(self) -> tuple[PoolOffer, ...]:
        return tuple(
            PoolOffer(
                name=pool.name,
                price=pool.price,
                standing=pool.standing,
                waiting=pool.waiting,
                free=self._fleet.free_in(pool.name),
                speed=pool.speed,
                rate=pool.hazard.rate,
                start_seconds=pool.known_start,
                retry_at=pool.retry_at,
                held_back=pool.failures > 0,
            )
            for pool in self._pools
        )

    def ranked(self, now: float) -> tuple[PoolRun, ...]:
        return ranked(self.offers, now, pull=self.pull, step_seconds=self.step_seconds)

    def missing(self, cap: int | None, now: float) -> tuple[str, ...]:
        """Pool of each instance to request now.

        Args:
            cap: instances worth having; None: all that there can be.
        """
        offers = self.offers
        self.wake_at = math.inf
        standing = sum(offer.standing for offer in offers)
        free = sum(offer.free for offer in offers)
        short = free if cap is None else max(0, cap - standing)
        by_margin = self._by_margin and cap is not None
        wanted = mix(self.ranked(now), cap) if by_margin and cap is not None else None
        found = chosen(
            offers,
            min(short, free),
            now,
            room=self._room(),
            wanted=wanted,
            explore=by_margin and cap != 0,
            pull=self.pull,
            step_seconds=self.step_seconds,
        )
        if short > len(found) or by_margin:
            self.wake_at = wake_at(offers, now)
        return found

    def surplus(self, cap: int, members: Mapping[str, int], now: float) -> dict[str, int]:
        """Instances to release, by pool.

        Args:
            members: at work, by pool.
        """
        return surplus(self.offers, members, mix(self.ranked(now), cap))

    def rest(self) -> None:
        """Wait for the next event: nothing can be requested before."""
        self.wake_at = math.inf

    def _room(self) -> float:
        """Dollars per hour left of the budget."""
        most = self._settings.max_dollars_per_hour
        if not most:
            return math.inf
        return max(0.0, most - self._roster.index.hourly - self._pools.waiting_hourly)
