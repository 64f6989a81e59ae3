"""Tail merging: instances that a step has no more work for are let go until the next one.

After the window responses end one by one while the learner still has work for minutes, and
instances stand half empty, then idle. For every number of them that could finish the rest the
manager foresees when the learner is done and what that costs: reserved devices until then,
instances for as long as each has work, and starting others in time for the next step. Where
fewer are cheaper, those that hold least give their responses back (they are prefilled
elsewhere) and leave; what is above the number wanted does not come back. A market that lends
less easily than it lent makes this dearer than it looks.

Nothing is merged while a rollout waits, and all may return as soon as one does.
"""

import math

from rlboost_jax.manager.reducer.dispatch import Dispatch
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.step_model import StepModel
from rlboost_jax.manager.reducer.trainer import Trainer
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.fleet import Fleet
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.rollouts import Step
from rlboost_jax.manager.state.roster import Roster

LOOKS = 16  # at a step's tail, at most
LEAD = 1.0  # start-up times before the next step


class Tail:
    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        roster: Roster,
        fleet: Fleet,
        dispatch: Dispatch,
        servers: Servers,
        trainer: Trainer,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._roster = roster
        self._fleet = fleet
        self._dispatch = dispatch
        self._servers = servers
        self._trainer = trainer
        self.resting: int | None = None  # the provider's servers to do with until then; None: all
        self.back_at = math.inf  # when others are started again
        self.returning = False  # that has come, and its next step has not begun
        self._step: Step | None = None  # that was looked at
        self._seen = -1, -1  # finished responses and instances, when it was

    def settle(self, now: float) -> None:
        """Merge, let go and call back as is best at this moment."""
        step, model = self._ledger.active, self._dispatch.model
        if model is None or not self._settings.fleet.merge_tail:
            return
        if step is not self._step and step is not None:
            self._step, self._seen, self.returning = step, (-1, -1), False
            self._wake()
        elif self.resting is not None and (now >= self.back_at or self._stuck(step)):
            self.returning = True
            self._wake()
        if step is None or self.returning:
            return
        if self._dispatch.seeding.open or step.num_waiting or not model.ready:
            return
        own = self._own(step)
        if own and self._news(step, len(own)) and not self._roster.index.asked_back:
            self._seen = step.num_finished, len(own)
            self._merge(step, model, own, now)

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

    def _merge(self, step: Step, model: StepModel, own: list[Instance], now: float) -> None:
        closed = step.begun_at + self._dispatch.seeding.total(now)
        others = [i for i in self._dispatch.remote(step) if not self._fleet.server_of(i.hello)]
        left = len(step.rollouts) - step.num_finished
        prices = self._trainer.sizing.prices()
        last = 0 < self._settings.num_steps <= step.begin.step + 1
        cap = 0 if last else self._fleet.cap(self._trainer.instance_cap)
        surplus = 0 if cap is None else max(0, len(self._fleet.standing) - cap)
        hourly = prices.reserved + prices.time
        found: dict[int, tuple[float, float]] = {}  # instances kept → dollars, seconds to go

        def rest(instances: int, idle: float, surplus: int) -> float:
            """Dollars saved by so many, of which some are not needed again."""
            return min(surplus, instances) * idle * prices.instance + (
                max(0, instances - surplus) * prices.saved(idle)
            )

        for kept in range(len(own), -1, -1):
            going_on = [*others, *own[:kept]]
            if kept < len(own) and sum(i.slots for i in going_on) < left:
                break
            foreseen = model.tail(step, going_on, closed, now)
            if foreseen is None:
                return
            end = foreseen.end + model.overhead
            gone = len(own) - kept
            saved = rest(gone, end, surplus)
            if gone and not saved:
                break
            saved += rest(kept, max(0.0, end - foreseen.rollout), max(0, surplus - gone))
            found[kept] = end * (hourly + len(own) * prices.instance) - saved, end
            if kept + 1 in found and found[kept][0] > found[kept + 1][0]:
                break
        kept = min(found, key=lambda k: (found[k][0], k))
        for instance in own[kept:]:
            self._servers.dismiss(instance, now)
        if kept < len(own) or self.resting is not None:
            self.resting = len(self._fleet.standing)
            begins = now + found[kept][1]
            self.back_at = math.inf if last else max(now, begins - LEAD * prices.start_seconds)
