"""Tail merging, carried out: instances that a step has no more work for are let go until the next.

After the window responses end one by one while the learner still has work for minutes, and
instances stand half empty, then idle. Where fewer are cheaper (`policies.merging`), those that
hold least give their responses back (they are prefilled elsewhere) and leave; what is above the
number wanted does not come back. A market that lends less easily than it lent makes this dearer
than it looks.

Nothing is merged while a rollout waits, and all may return as soon as one does.
"""

import math
from collections.abc import Sequence

from rlboost_jax.manager.policies.forecast import Forecast
from rlboost_jax.manager.policies.merging import best_merge
from rlboost_jax.manager.reducer.rollout_dispatch import RolloutDispatch
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.sizing import Sizing
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.reducer.window_control import WindowControl
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord

LOOKS = 16  # at a step's tail, at most
LEAD = 1.0  # start-up times before the next step


class TailMerging:
    """Merging of a step's tail onto fewer instances.

    Attributes:
        resting: the provider's servers to do with until `back_at`; None: all that there are.
        back_at: when others are started again; inf: there is nothing to wait for.
        returning: that has come, and its next step has not begun.
    """

    def __init__(
        self,
        settings: Settings,
        owners: Owners,
        plans: StepPlans,
        dispatch: RolloutDispatch,
        seeding: SeedingWindow,
        servers: Servers,
        sizing: Sizing,
        control: WindowControl,
    ) -> None:
        self._merges = settings.fleet.merge_tail
        self._num_steps = settings.num_steps
        self._roster = owners.roster
        self._fleet = owners.fleet
        self._plans = plans
        self._dispatch = dispatch
        self._seeding = seeding
        self._servers = servers
        self._sizing = sizing
        self._control = control
        self.resting: int | None = None
        self.back_at = math.inf
        self.returning = False
        # The oldest and the newest that were open when it was looked at.
        self._open: tuple[BatchRecord, BatchRecord] | None = None
        self._seen = -1, -1  # finished responses and instances, when it was

    def settle(self, batches: Sequence[BatchRecord], now: float) -> None:
        """Merge, release and recall instances as is best at this moment.

        While a later batch has work, nothing is done.
        """
        plans = self._plans
        if not self._merges:
            return
        opened = (batches[0], batches[-1]) if batches else None
        if opened != self._open and opened is not None:
            self._open, self._seen, self.returning = opened, (-1, -1), False
            self._wake()
        elif self.resting is not None and (now >= self.back_at or self._stuck(batches)):
            self.returning = True
            self._wake()
        if not batches or self.returning or not all(later.finished for later in batches[1:]):
            return
        batch = batches[0]
        if self._seeding.open or batch.num_waiting or not plans.model.ready:
            return
        own = self._own(batch)
        if own and self._news(batch, len(own)) and not self._roster.index.num_releasing:
            self._seen = batch.num_finished, len(own)
            last = 0 < self._num_steps <= batches[-1].begin.batch + 1
            self._merge(batch, plans, own, now, last=last)

    def _stuck(self, batches: Sequence[BatchRecord]) -> bool:
        """Whether new work exists that no remaining instance can do."""
        return any(batch.num_waiting and not self._dispatch.remote(batch) for batch in batches)

    def _wake(self) -> None:
        self.resting, self.back_at = None, math.inf

    def _news(self, batch: BatchRecord, instances: int) -> bool:
        finished, known = self._seen
        enough = (batch.num_finished - finished) * LOOKS >= len(batch.rollouts)
        return enough or instances != known or (batch.finished and batch.num_finished != finished)

    def _own(self, batch: BatchRecord) -> list[Instance]:
        """The provider's instances that work on the step, the fullest first."""
        ready = (i for i in self._dispatch.remote(batch) if self._fleet.server_of(i.hello))
        return sorted(ready, key=lambda i: (-len(i.held), i.order))

    def _merge(
        self,
        batch: BatchRecord,
        plans: StepPlans,
        own: list[Instance],
        now: float,
        *,
        last: bool,
    ) -> None:
        """Gather a batch's last rollouts on fewer instances, if that pays.

        Args:
            last: no batch follows.
        """
        closed = batch.begun_at + self._seeding.clock.total(now)
        others = [i for i in self._dispatch.remote(batch) if not self._fleet.server_of(i.hello)]
        cap = 0 if last else self._fleet.cap(self._control.instance_cap)
        prices = self._sizing.prices(now)

        def predict(kept: int) -> Forecast | None:
            return plans.tail(batch, [*others, *own[:kept]], closed, now)

        merge = best_merge(
            predict,
            own=[instance.room for instance in own],
            other_slots=sum(instance.room for instance in others),
            left=len(batch.rollouts) - batch.num_finished,
            surplus=0 if cap is None else max(0, len(self._fleet.standing) - cap),
            overhead=plans.model.overhead,
            prices=prices,
        )
        if merge is None:
            return
        for instance in own[merge.kept :]:
            self._servers.dismiss(instance, now)
        if merge.kept < len(own) or self.resting is not None:
            self.resting = len(self._fleet.standing)
            begins = now + merge.end - LEAD * prices.start_seconds
            self.back_at = math.inf if last else max(now, begins)
