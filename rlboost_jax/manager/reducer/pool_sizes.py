"""Composition and cost of fleets of several pools, by number of instances.

Of so many instances those count that `policies.pool_choice` ranks first. How fast a pool is, is
measured at the instances that it has; what they were like is remembered when they are gone.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from rlboost_jax.manager.policies.fleet_size import KnownRate, Prices
from rlboost_jax.manager.policies.forecast import Forecast
from rlboost_jax.manager.policies.pool_choice import PoolRun, mix, usual_speed
from rlboost_jax.manager.reducer.purchases import Purchases
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners

LEAST_RATE = 1e-12  # per second: a rate is divided by


class PoolSizes:
    """Predicted fleets of several pools, by their number of instances.

    Attributes:
        most: instances of the largest fleet there can be now.
    """

    def __init__(self, owners: Owners, purchases: Purchases) -> None:
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
        by_pool: dict[str, list[Instance]] = {}
        for instance in remote:
            if name := self._pools.streams.get(instance.stream):
                by_pool.setdefault(name, []).append(instance)
        for name, members in by_pool.items():
            paces = [(plans.model.pace(instance), instance.room) for instance in members]
            speeds = [room / (p.base + p.row * room) for p, room in paces if p is not None]
            if not speeds or not plans.model.knows(members[0]):
                continue
            self._pools[name].measure(sum(speeds) / len(speeds))
            factors = [plans.model.speeds.factor(instance.name) for instance in members]
            self._likes[name] = members[0], sum(factors) / len(factors)
        self._runs = self._purchases.ranked(now)
        self.most = sum(run.count for run in self._runs)

    def engines(self, instances: int) -> list[tuple[Instance, float, int]]:
        """An instance, its factor and the count for each pool of the best fleet of that size."""
        assert self._other is not None
        return [
            (*self._likes.get(name, (self._other, 1.0)), count)
            for name, count in mix(self._runs, instances).items()
        ]

    def overlapping(
        self, plans: StepPlans, reserved: Sequence[Instance], instances: int
    ) -> tuple[Forecast, float] | None:
        """Predict a step of a run with a lag, and its response tokens; None: not known.

        Batches overlap, so that engines are full and tails bind nobody: the learner has its work
        to do, and all engines together have theirs, the reserved ones while it does not train.
        """
        paces = [(plans.model.pace(instance), instance.room) for instance in reserved]
        own = sum(room / (p.base + p.row * room) for p, room in paces if p is not None)
        usual = usual_speed(self._purchases.offers)
        counts = mix(self._runs, instances).items()
        speed = sum(count * (self._pools[name].speed or usual) for name, count in counts)
        if not own + speed > 0:
            return None
        _, lengths, _, totals = plans.model.asked_for()
        tokens, learner = float(lengths.sum()), plans.model.seconds_per_token * sum(totals)
        end = max(learner, (tokens + own * learner) / (own + speed))
        return Forecast(window=0.0, rollout=end, wait=end - learner, end=end), tokens

    def prices(self, prices: Prices, instances: int) -> Prices:
        """The prices with the cost and the loss rate of that fleet's instances."""
        counts = mix(self._runs, instances)
        if not counts:
            return prices
        dollars = losses = at_work = 0.0
        for name, count in counts.items():
            pool = self._pools[name]
            dollars += count * pool.price / 3600
            losses += count * pool.hazard.rate
            at_work += count / (1.0 + pool.hazard.rate * pool.known_start)
        total = sum(counts.values())
        rate = max(losses / total, LEAST_RATE)
        return replace(
            prices,
            instance=dollars / total,
            hazard=KnownRate(rate),
            start_seconds=(total / at_work - 1.0) / rate,
        )

    def record(self, wanted: int, step_seconds: float, now: float) -> None:
        """Record the requests to each pool and their outcomes so far."""
        self._purchases.learn(step_seconds)
        chosen = mix(self._runs, wanted)
        self._pools.account(now)
        self._outbox.record(
            "pools",
            pools=[
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
            ],
        )
