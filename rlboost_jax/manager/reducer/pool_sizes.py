"""Composition and cost of fleets, by number of instances.

A fleet has the instances that `policies.pool_choice` ranks first. The speed of a pool is measured
at its instances, and remembered when they are gone. A pool that the settings do not name may have
instances of any kind: they are taken to be like one that is there, at the prices of the run.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from rlboost_jax.manager.policies.fleet_size import KnownRate, Prices
from rlboost_jax.manager.policies.pool_choice import PoolRun, mix
from rlboost_jax.manager.reducer.purchases import Purchases
from rlboost_jax.manager.reducer.step_plans import LikeInstances, StepPlans
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.settings.fleet_config import FleetConfig

LEAST_RATE = 1e-12  # per second: a rate is divided by


class PoolSizes:
    """Predicted fleets, by their number of instances.

    Attributes:
        most: instances of the largest fleet there can be now.
    """

    def __init__(self, fleet: FleetConfig, owners: Owners, purchases: Purchases) -> None:
        self._limit = fleet.most_instances
        self._outbox = owners.outbox
        self._pools = owners.pools
        self._purchases = purchases
        self._likes: dict[str, tuple[Instance, float]] = {}  # one of a pool, and its factor
        self._other: Instance | None = None  # in place of one of a pool that had none yet
        self._runs: Sequence[PoolRun] = ()
        self.most = 0

    def learn(
        self, plans: StepPlans, remote: Sequence[Instance], other: Instance, now: float
    ) -> None:
        """Update the speeds of the pools' instances after a step.

        Args:
            remote: preemptible instances that are there.
            other: some instance.
        """
        self._other = other
        by_pool: dict[str, list[Instance]] = {pool.name: [] for pool in self._pools.named}
        for instance in remote:
            if (name := self._pools.streams.get(instance.stream)) in by_pool:
                by_pool[name].append(instance)
        for name, members in by_pool.items():
            paces = [(plans.model.pace(instance), instance.room) for instance in members]
            speeds = [room / (p.base + p.row * room) for p, room in paces if p is not None]
            if not speeds or not plans.model.knows(members[0]):
                continue
            self._pools[name].measure(sum(speeds) / len(speeds))
            factors = [plans.model.speeds.factor(instance.name) for instance in members]
            self._likes[name] = members[0], sum(factors) / len(factors)
        self._runs = self._purchases.ranked(now)
        self.most = min(self._limit, sum(run.count for run in self._runs))

    def instances(self, number: int) -> list[LikeInstances]:
        """Instances of the best fleet of that size."""
        assert self._other is not None
        found = []
        for name, count in mix(self._runs, number).items():
            like, factor = self._likes.get(name, (self._other, 1.0))
            found.append(LikeInstances(like, count, factor))
        return found

    def prices(self, prices: Prices, instances: int) -> Prices:
        """The prices with the cost and the loss rate of that fleet's instances."""
        counts = mix(self._runs, instances)
        mixed = [(pool, counts[pool.name]) for pool in self._pools.named if pool.name in counts]
        if not mixed:
            return prices
        dollars = losses = at_work = 0.0
        for pool, count in mixed:
            dollars += count * pool.price / 3600
            losses += count * pool.hazard.rate
            at_work += count / (1.0 + pool.hazard.rate * pool.known_start)
        total = sum(count for _, count in mixed)
        rate = max(losses / total, LEAST_RATE)
        return replace(
            prices,
            instance=dollars / total,
            hazard=KnownRate(rate),
            start_seconds=(total / at_work - 1.0) / rate,
        )

    def record(self, wanted: int, step_seconds: float, now: float) -> None:
        """Record the requests to each named pool and their outcomes so far."""
        self._purchases.learn(step_seconds)
        chosen = mix(self._runs, wanted)
        self._pools.account(now)
        lines = [
            {
                "name": pool.name,
                "wanted": chosen.get(pool.name, 0),
                "standing": pool.standing,
                "members": pool.members,
                "asked": pool.asked,
                "granted": pool.granted,
                "refused": pool.refused,
                "lost": pool.lost,
                "seconds_alive": pool.alive.total(now),
                "dollars": pool.dollars.total(now),
                "price_per_hour": pool.price,
                "tokens_per_second": pool.speed,
                "start_seconds": None if math.isinf(pool.start_seconds) else pool.start_seconds,
                "losses_per_hour": pool.hazard.rate * 3600,
                "paused": pool.failures > 0,
            }
            for pool in self._pools.named
        ]
        if lines:
            self._outbox.record("pools", pools=lines)
