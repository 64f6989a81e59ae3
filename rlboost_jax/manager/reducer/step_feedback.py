"""Learning from finished steps: engine speeds, response lengths, the next step's prediction."""

from rlboost_jax.manager.policies.throughput import ThroughputProfile
from rlboost_jax.manager.reducer.rollout_dispatch import RolloutDispatch
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.reducer.sizing import Sizing
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.messages import BatchTrained


class StepFeedback:
    def __init__(
        self,
        roster: Roster,
        seeding: SeedingWindow,
        dispatch: RolloutDispatch,
        profile: ThroughputProfile,
        plans: StepPlans,
        sizing: Sizing,
    ) -> None:
        self._roster = roster
        self._seeding = seeding
        self._dispatch = dispatch
        self._profile = profile
        self._plans = plans
        self._sizing = sizing

    @property
    def wanted(self) -> int | None:
        """Number of preemptible instances wanted; None: no step was predicted yet."""
        return self._sizing.wanted

    def learn(self, step: BatchRecord, message: BatchTrained, cap: int | None, now: float) -> None:
        """Learn from a step, before its unfinished rollouts are dropped.

        Args:
            cap: the number of instances wanted so far; None: not known.
        """
        self._roster.learn(step)
        plans, model = self._plans, self._plans.model
        if not model.learns:
            return
        closed = self._seeding.take_planned_end()
        if closed is not None and not self._roster.changed:
            model.compare(step, closed, plans.planned_drag)
        accounted = message.train_wait_seconds + message.train_seconds
        model.learn(
            step,
            train_seconds=message.train_seconds,
            other_seconds=now - step.begun_at - self._seeding.clock.total(now) - accounted,
            present=[instance.name for instance in self._roster],
        )
        plans.choose_order(*self._dispatch.engines)
        self._sizing.predict(plans, cap, now)

    def end_step(self) -> None:
        """End the throughput profile of a step, whole or interrupted."""
        self._profile.end_step()
