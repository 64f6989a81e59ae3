"""The next step predicted for fleets of several sizes, and what is recorded of it."""

import functools
import math

from rlboost_jax.manager.policies.fleet_size import (
    Hazard,
    Prices,
    Size,
    best_size,
    kept_size,
    size_of,
)
from rlboost_jax.manager.policies.forecast import Forecast
from rlboost_jax.manager.reducer.pool_sizes import PoolSizes
from rlboost_jax.manager.reducer.purchases import Purchases
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.owners import Owners


class Sizing:
    """Choice of the fleet's size, from predictions of the next step.

    Attributes:
        wanted: preemptible instances; None: no step was predicted yet.
        kept: instances that are not let go for better ones.
        predicted: times that a step was.
    """

    def __init__(self, settings: Settings, owners: Owners, purchases: Purchases) -> None:
        self._fleet, self._predicts = settings.fleet, settings.predicts_sizes
        self._replaces = settings.replaces_instances
        self._outbox = owners.outbox
        self._roster = owners.roster
        self._versions = owners.versions
        self._pool_sizes = PoolSizes(settings.fleet, owners, purchases)
        self.wanted: int | None = None
        self.kept = self._kept = self.predicted = 0

    def predict(self, plans: StepPlans, known: int | None, now: float) -> None:
        """Predict the next step for several sizes, after a step that the model has learnt.

        Args:
            known: the size wanted so far, to begin with; None: as many as are reserved.
        """
        reserved = list(self._roster.index.reserved.values())
        remote = [instance for instance in self._roster if instance.member]
        like = next(iter(remote or reserved), None)
        if like is None or not plans.predicts(reserved, like):
            return
        pools = self._pool_sizes
        pools.learn(plans, remote, like, now)
        if not self._predicts:
            return
        prices, overhead = self.prices(now), plans.model.overhead
        sizes: dict[int, Size] = {}

        @functools.cache
        def step(instances: int) -> tuple[Forecast, float]:
            found = plans.whole_step(reserved, pools.instances(instances))
            assert found is not None
            return found

        def predicted(instances: int) -> Size:
            if instances not in sizes:
                known = pools.prices(prices, instances)
                sizes[instances] = size_of(step, instances, prices=known, overhead=overhead)
            return sizes[instances]

        most = pools.most
        start = len(reserved) if known is None else known
        self.wanted = best_size(predicted, time=prices.time, start=start, most=most).instances
        here = min(len(remote), most)
        self.predicted += 1
        if self._replaces:
            kept = kept_size(predicted, time=prices.time, wanted=self.wanted, here=here)
            self.kept, self._kept = max(kept, self._kept), kept  # two predictions agree
        for size in (here - 1, here, here + 1):
            if 0 <= size <= most:
                predicted(size)
        self._outbox.record(
            "predicted",
            instances=len(remote),
            wanted=self.wanted,
            sizes=[
                [s.instances, s.step_seconds, s.window_seconds, s.tokens, s.dollars]
                for _, s in sorted(sizes.items())
            ],
            losses_per_hour=prices.hazard.rate * 3600,
            start_seconds=prices.start_seconds,
        )
        pools.record(self.wanted, predicted(self.wanted).step_seconds, now)

    def prices(self, now: float) -> Prices:
        """Current prices.

        An instance costs the mean of those present, or the configured price without any.
        """
        index = self._roster.index
        mean = index.hourly / index.num_preemptible if index.num_preemptible else None
        start, fleet, newest = self._roster.start_seconds, self._fleet, self._versions.newest
        known = start < math.inf
        snapshot = 0 if newest is None else newest.num_bytes
        return Prices(
            reserved=fleet.reserved_price_per_hour / 3600,
            instance=(fleet.price_per_hour if mean is None else mean) / 3600,
            pull=fleet.egress_dollars_per_gb * snapshot / 1e9,
            time=fleet.worth_per_hour / 3600,
            start_seconds=start if known else 0.0,
            hazard=Hazard(self._roster.losses, self._roster.alive.total(now)),
            releases=fleet.merge_tail and known,
        )
