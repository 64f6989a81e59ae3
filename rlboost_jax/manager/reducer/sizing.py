"""The next step foreseen for fleets of several sizes, and which of them is wanted."""

import math

from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.policies.fleet_size import Hazard, Prices, Size, best_size
from rlboost_jax.manager.policies.forecast import Forecast
from rlboost_jax.manager.reducer.step_model import StepModel
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.manager.state.versions import Versions


class Sizing:
    def __init__(
        self, settings: Settings, roster: Roster, versions: Versions, outbox: Outbox
    ) -> None:
        self._fleet = settings.fleet
        self._roster = roster
        self._versions = versions
        self._outbox = outbox
        self.wanted: int | None = None  # preemptible instances; None: nothing was foreseen yet

    def foresee(self, model: StepModel, known: int | None) -> None:
        """After a step that the model has learnt of.

        Args:
            known: the size wanted so far, to begin with; None: as many as are reserved.
        """
        reserved = list(self._roster.index.reserved.values())
        remote = [instance for instance in self._roster if instance.member]
        like = next(iter(remote or reserved), None)
        if like is None or not reserved or model.whole_step(reserved, like, 0) is None:
            return
        prices = self.prices()
        steps: dict[int, tuple[Forecast, float]] = {}
        sizes: dict[int, Size] = {}

        def step(instances: int) -> tuple[Forecast, float]:
            if instances not in steps:
                found = model.whole_step(reserved, like, instances)
                assert found is not None
                steps[instances] = found
            return steps[instances]

        def foreseen(instances: int) -> Size:
            if instances not in sizes:
                forecast, tokens = step(instances)
                seconds, missing = forecast.end, instances - prices.at_work(instances)
                if instances and missing > 0:
                    seconds += missing * max(0.0, step(instances - 1)[0].end - seconds)
                seconds += model.overhead
                sizes[instances] = Size(
                    instances=instances,
                    step_seconds=seconds,
                    window_seconds=forecast.window,
                    tokens=tokens,
                    dollars=prices.step(instances, seconds, max(0.0, seconds - forecast.rollout)),
                )
            return sizes[instances]

        most = self._fleet.max_instances
        start = len(reserved) if known is None else known
        self.wanted = best_size(foreseen, time=prices.time, start=start, most=most).instances
        here = min(len(remote), most)
        for size in (here - 1, here, here + 1):
            if 0 <= size <= most:
                foreseen(size)
        self._outbox.record(
            "foreseen",
            instances=len(remote),
            wanted=self.wanted,
            sizes=[
                [s.instances, s.step_seconds, s.window_seconds, s.tokens, s.dollars]
                for _, s in sorted(sizes.items())
            ],
            losses_per_hour=prices.hazard.rate * 3600,
            start_seconds=prices.start_seconds,
        )

    def prices(self) -> Prices:
        """With the mean of what instances there are cost; the configured price without any."""
        asked = self._roster.index.prices
        count = sum(asked.values())
        mean = sum(price * n for price, n in asked.items()) / count if count else None
        start, fleet, newest = self._roster.start_seconds, self._fleet, self._versions.newest
        known = start < math.inf
        snapshot = 0 if newest is None else newest.num_bytes
        return Prices(
            reserved=fleet.reserved_price_per_hour / 3600,
            instance=(fleet.price_per_hour if mean is None else mean) / 3600,
            pull=fleet.egress_dollars_per_gb * snapshot / 1e9,
            time=fleet.worth_per_hour / 3600,
            start_seconds=start if known else 0.0,
            hazard=Hazard(self._roster.losses, self._roster.alive.total(self._roster.now)),
            releases=fleet.merge_tail and known,
        )
