"""What is told of a step once it is trained: its times, instances, tokens and dollars."""

from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.reducer.dispatch import Dispatch
from rlboost_jax.manager.state.rollouts import Step
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.messages import StepReport, StepTrained, WindowState


class StepReports:
    def __init__(self, roster: Roster, dispatch: Dispatch, outbox: Outbox) -> None:
        self._roster = roster
        self._dispatch = dispatch
        self._outbox = outbox
        self._ready_before = 0.0  # instance-seconds when the step began
        self.paid: dict[int, float] = {}  # step → dollars of the run when it was reported

    def begin(self, now: float) -> None:
        """A step begins: what comes from now on is its own."""
        self._ready_before = self._roster.ready.total(now)

    def forget(self, step: int) -> None:
        """No step before this one will be reported again."""
        self.paid = {s: paid for s, paid in self.paid.items() if s >= step}

    def instances(self, step: Step, now: float) -> float:
        """Preemptible instances that were ready, averaged over the step."""
        elapsed = now - step.begun_at
        ready_seconds = self._roster.ready.total(now) - self._ready_before
        return ready_seconds / elapsed if elapsed > 0 else 0.0

    def report(self, step: Step, window: WindowState, now: float) -> StepReport:
        """What the trainer is told of a step that was closed.

        Args:
            window: of the next step.
        """
        books, delivered = step.books, step.delivered(measuring=False)
        measured = [part for r in step.delivered(measuring=True) for part in r.parts]
        own = sum(count for name, count in measured if name in self._roster.own)
        others = sum(count for _, count in measured) - own
        seconds = rollout_seconds(step)
        return StepReport(
            step=step.begin.step,
            rollout_seconds=seconds,
            remote_wait_seconds=now - step.begun_at - seconds,
            seeding_window_seconds=self._dispatch.seeding.total(now),
            instances_mean=self.instances(step, now),
            instances_joined=books.joined,
            instances_lost=books.gone,
            requests_migrated=books.migrated,
            tokens_generated=books.generated - own - others,
            tokens_delivered=sum(rollout.num_tokens for rollout in delivered),
            tokens_lost=books.lost,
            tokens_prefilled_again=books.prefilled_again,
            tokens_reserved=books.reserved - own,
            tokens_preemptible=books.preemptible - others,
            tokens_measured=own + others,
            cost_dollars=self._cost_since_last(step.begin.step, now),
            window=window,
        )

    def record(self, step: Step, message: StepTrained, report: StepReport) -> None:
        """What a step was made of, for whoever fits models to it."""
        lengths: dict[int, list[int]] = {}
        for rollout in step.delivered(measuring=False):
            lengths.setdefault(rollout.group, []).append(rollout.num_tokens)
        for instance in self._roster:
            self._dispatch.record_usage(instance)
        self._outbox.record(
            "trained",
            lengths=list(lengths.values()),
            train_seconds=message.train_seconds,
            train_wait_seconds=message.train_wait_seconds,
            seeding_window_seconds=report.seeding_window_seconds,
            instances_mean=report.instances_mean,
        )

    def _cost_since_last(self, step: int, now: float) -> float:
        """Dollars since the report of the step before this one.

        So the rows that a run keeps add up to all that was paid: what went on between two
        steps is in the second, and what a returned trainer does again replaces what it did.
        """
        self.paid = {s: paid for s, paid in self.paid.items() if s < step}
        before = max(self.paid.values(), default=0.0)
        self.paid[step] = self._roster.cost.total(now)
        return self.paid[step] - before


def rollout_seconds(step: Step) -> float:
    """From a step's beginning to its last token."""
    return max(0.0, step.last_token_at - step.begun_at)
