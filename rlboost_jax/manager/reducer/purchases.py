"""Requests for and releases of instances in each pool, see `policies.pool_choice`."""

import math
from collections.abc import Mapping, Sequence

from rlboost_jax.manager.policies.pool_choice import (
    PoolOffer,
    PoolRun,
    chosen,
    mix,
    ranked,
    surplus,
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
                later=pool.terms.later,
                speed=pool.speed,
                rate=pool.hazard.rate,
                start_seconds=pool.known_start,
                retry_at=pool.retry_at,
                single=pool.single,
            )
            for pool in self._pools
        )

    def ranked(self, now: float) -> tuple[PoolRun, ...]:
        return self._ranked(self.offers, now)

    def _ranked(self, offers: Sequence[PoolOffer], now: float) -> tuple[PoolRun, ...]:
        return ranked(offers, now, pull=self.pull, step_seconds=self.step_seconds)

    def missing(self, cap: int | None, now: float) -> tuple[str, ...]:
        """Pool of each instance to request now.

        Args:
            cap: instances worth having; None: all that there can be.
        """
        self.wake_at, missing = math.inf, self._fleet.missing(cap)
        most = self._fleet.missing(None)  # others may be better than some that stand
        if not most or not (missing or self._by_margin):
            return ()
        offers, room, by_margin = self.offers, self._room(), self._by_margin and cap is not None

        def found(now: float) -> tuple[str, ...]:
            return chosen(
                offers,
                missing,
                now,
                most=most,
                room=room,
                wanted=mix(self._ranked(offers, now), cap) if by_margin and cap else None,
                explore=by_margin and cap != 0,
                pull=self.pull,
                step_seconds=self.step_seconds,
            )

        pools = found(now)
        pauses = [o.retry_at for o in offers if o.free and o.retry_at > now]
        if pauses and found(math.inf) != pools:
            self.wake_at = min(pauses)
        return pools

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
