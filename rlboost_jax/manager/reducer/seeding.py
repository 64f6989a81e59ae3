"""The seeding window of a step: when the reserved engines hand over, and when they are back."""

import math
from collections.abc import Sequence

from rlboost_jax.manager.policies.forecast import RESOLUTION
from rlboost_jax.manager.policies.window import Seeding
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.messages import WindowClosed


class SeedingWindow:
    """The seeding window of the batch whose turn it is.

    Attributes:
        clock: whether it is open, and for how long it was.
    """

    def __init__(
        self,
        settings: Settings,
        owners: Owners,
        placements: Placements,
        plans: StepPlans,
    ) -> None:
        self._settings = settings.manager
        self._outbox = owners.outbox
        self._ledger = owners.ledger
        self._roster = owners.roster
        self._placements = placements
        self._plans = plans
        self.clock = Seeding()
        self._planned_for = -1  # members of the fleet at the last plan
        self._planned_end: float | None = None

    @property
    def open(self) -> bool:
        return self.clock.open

    def begin(self, begun_at: float, seconds: float, *, learnt: bool) -> None:
        """Open the window of a step.

        A model that knows nothing yet lets the reserved engines go on until nothing is left for
        them, as if there were no instances: that is never slower than to generate alone.

        Args:
            seconds: that it is to last, where no model says better.
            learnt: a whole step has been seen.
        """
        modelled = self._settings.seeding and self._settings.window == "model"
        if not self._settings.seeding:
            seconds = 0.0
        elif modelled and not learnt:
            seconds = math.inf
        self.clock.begin(begun_at, seconds)
        if modelled:
            self.clock.ask_at(begun_at)  # ask the model as soon as there is an instance

    def close_or_reopen(
        self,
        batch: BatchRecord,
        reserved: Sequence[Instance],
        now: float,
        *,
        others: bool,
    ) -> None:
        """Close the window, or open it again, if its time has come.

        Args:
            reserved: engines that can work on the step.
            others: whether preemptible instances can.
        """
        if self.clock.open:
            if batch.finished:
                self.close(batch, "all responses are finished", now)
            elif others and self._over(batch, reserved, now):
                self.close(batch, "the window is over", now)
        elif not others and not batch.finished:
            self.clock.reopen(now)

    def close(self, batch: BatchRecord, reason: str, now: float) -> None:
        """Have the reserved engines hand over, and tell the trainer why."""
        self.clock.close(now)
        self._outbox.record("window_closed", seconds=self.clock.total(now), reason=reason)
        self.announce_end(batch, reason, now)
        self.hand_over(now)

    def announce_end(self, batch: BatchRecord, reason: str, now: float) -> None:
        """Tell the trainer that the devices are the learner's."""
        seconds = self.clock.total(now)
        self._outbox.of_batch(WindowClosed(batch=batch.begin.batch, seconds=seconds, reason=reason))

    def hand_over(self, now: float) -> None:
        """Release the rollouts of the reserved engines."""
        self.stop(now)
        for instance in self._roster.index.reserved.values():
            self._placements.release(instance, instance.held.values(), now)

    def stop(self, now: float) -> None:
        """Stop the window's clock at the end of the step."""
        if self.clock.open:
            self.clock.close(now)

    def undisturbed(self, instance: Instance) -> bool:
        """Whether the instance has its chips to itself: the learner may use a reserved one's."""
        return not instance.reserved or (self.clock.open and not self.clock.reopened)

    def take_planned_end(self) -> float | None:
        """When the model ended the window, returned once; None: it did not."""
        ended, self._planned_end = self._planned_end, None
        return ended

    def _over(self, batch: BatchRecord, reserved: Sequence[Instance], now: float) -> bool:
        """Whether the window has lasted long enough; schedules the next check.

        By the model, the rest of the step is predicted again half-way to the end that was
        predicted last, and when the fleet has changed.
        """
        clock, plans = self.clock, self._plans
        if self._settings.window == "paper" or not self._settings.seeding:
            return now >= clock.until
        members = self._roster.members
        if clock.reopened or (now < clock.until and members == self._planned_for):
            return clock.reopened
        self._planned_for = members
        ahead = self._ledger.lagging
        fleet = self._gathered(batch) if ahead else [i for i in self._roster if i.member]
        found = plans.window(batch, reserved, fleet, now, ahead=ahead)
        if found is None:
            clock.ask_at(max(now, clock.limit))
            return now >= clock.limit
        near = RESOLUTION * (now - batch.begun_at + found.end)
        if found.window <= near:
            self._planned_end = now
            return True
        clock.ask_at(now + (found.window if found.window < 4 * near else found.window / 2))
        return False

    def _gathered(self, batch: BatchRecord) -> list[Instance]:
        """Instances that continue a batch in a run with a lag: as many as have slots for it."""
        left, fleet = len(batch.rollouts) - batch.num_finished, []
        members = [i for i in self._roster if i.member and i.parameters.awaits(batch.begin.version)]
        for instance in sorted(members, key=lambda i: (-len(i.held), i.order)):
            if left > 0:
                fleet.append(instance)
                left -= instance.last_room
        return fleet
