"""Tail merging, carried out: instances that a step has no more work for are let go until the next.

After the window responses end one by one while the learner still has work for minutes, and
instances stand half empty, then idle. Where fewer are cheaper (`policies.merging`), those that
hold least give their responses back (they are prefilled elsewhere) and leave; what is above the
number wanted does not come back. A market that lends less easily than it lent makes this dearer
than it looks.

Nothing is merged while a rollout waits, and all may return as soon as one does.
"""

import math

from rlboost_jax.manager.policies.forecast import Forecast
from rlboost_jax.manager.policies.merging import best_merge
from rlboost_jax.manager.reducer.control import WindowControl
from rlboost_jax.manager.reducer.dispatch import Dispatch
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.sizing import Sizing
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import Step

LOOKS = 16  # at a step's tail, at most
LEAD = 1.0  # start-up times before the next step


class Tail:
    """
    Attributes:
        resting: the provider's servers to do with until `back_at`; None: all that there are.
        back_at: when others are started again; inf: there is nothing to wait for.
        returning: that has come, and its next step has not begun.
    """

    def __init__(
        self,
        settings: Settings,
        owners: Owners,
        plans: StepPlans | None,
        dispatch: Dispatch,
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
        self._step: Step | None = None  # that was looked at
        self._seen = -1, -1  # finished responses and instances, when it was

    def settle(self, step: Step | None, now: float) -> None:
        """Merge, let go and call back as is best at this moment.

        Args:
            step: the active one.
        """
        plans = self._plans
        if plans is None or not self._merges:
            return
        if step is not self._step and step is not None:
            self._step, self._seen, self.returning = step, (-1, -1), False
            self._wake()
        elif self.resting is not None and (now >= self.back_at or self._stuck(step)):
            self.returning = True
            self._wake()
        if step is None or self.returning:
            return
        if self._seeding.open or step.num_waiting or not plans.model.ready:
            return
        own = self._own(step)
        if own and self._news(step, len(own)) and not self._roster.index.asked_back:
            self._seen = step.num_finished, len(own)
            self._merge(step, plans, own, now)

    def _stuck(self, step: Step | None) -> bool:
        """Whether work has come up again that nobody is left for."""
        return step is not None and step.num_waiting > 0 and not self._dispatch.remote(step)

    def _wake(self) -> None:
        self.resting, self.back_at = None, math.inf

    def _news(self, step: Step, instances: int) -> bool:
        finished, known = self._seen
        enough = (step.num_finished - finished) * LOOKS >= len(step.rollouts)
        return enough or instances != known or (step.finished and step.num_finished != finished)

    def _own(self, step: Step) -> list[Instance]:
        """Those of the provider's that work on the step, the fullest first."""
        ready = (i for i in self._dispatch.remote(step) if self._fleet.server_of(i.hello))
        return sorted(ready, key=lambda i: (-len(i.held), i.order))

    def _merge(self, step: Step, plans: StepPlans, own: list[Instance], now: float) -> None:
        closed = step.begun_at + self._seeding.clock.total(now)
        others = [i for i in self._dispatch.remote(step) if not self._fleet.server_of(i.hello)]
        last = 0 < self._num_steps <= step.begin.step + 1
        cap = 0 if last else self._fleet.cap(self._control.instance_cap)
        prices = self._sizing.prices(now)

        def foresee(kept: int) -> Forecast | None:
            return plans.tail(step, [*others, *own[:kept]], closed, now)

        merge = best_merge(
            foresee,
            own=[instance.slots for instance in own],
            other_slots=sum(instance.slots for instance in others),
            left=len(step.rollouts) - step.num_finished,
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
