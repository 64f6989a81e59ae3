"""Intake of one open batch's messages, whichever batch is being trained on.

A batch has responses that are trained on and others that are measured. The last one of a run has
only the latter, and so no stream.
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from rlboost_jax import messages
from rlboost_jax.learner.episodes.collector import StepCollector
from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.stream.step_stream import StepStream


@runtime_checkable
class Measured(Protocol):
    """Responses that are generated and not trained on: a `Measurement`."""

    @property
    def complete(self) -> bool: ...
    @property
    def check_due(self) -> bool: ...
    def take(self, rollout: messages.FinishedRollout, /) -> bool: ...
    def withdraw(self, withdrawn: messages.ResponsesWithdrawn, /) -> None: ...
    def take_unchecked(self) -> Group: ...
    def reject(self, samples: Iterable[int], /) -> None: ...


class MeasuredIntake:
    """Passes messages to the evaluation they belong to."""

    def __init__(self, measured: Measured | None = None) -> None:
        """
        Args:
            measured: takes the responses that are its own.
        """
        self.measured = measured

    @property
    def complete(self) -> bool:
        return self.measured is None or self.measured.complete

    @property
    def check_due(self) -> bool:
        return self.measured is not None and self.measured.check_due

    def take(self, message: messages.ToTrainer) -> bool:
        """Process a message; return whether it was a response to measure. Raises WrongVersion."""
        match message:
            case messages.FinishedRollout() if self.measured is not None:
                return self.measured.take(message)
            case messages.ResponsesWithdrawn() if self.measured is not None:
                self.measured.withdraw(message)
        return False


class BatchIntake:
    """Passes messages to one batch's stream and collector.

    Messages of another batch change nothing, so each open batch may be given every message.
    """

    def __init__(
        self,
        stream: StepStream,
        collector: StepCollector,
        measured: Measured | None = None,
    ) -> None:
        """
        Args:
            measured: see `MeasuredIntake`.
        """
        self.stream, self.collector = stream, collector
        self.others = MeasuredIntake(measured)

    def take(self, message: messages.ToTrainer) -> None:
        """Process a message. Raises WrongVersion."""
        if self.others.take(message):
            return
        match message:
            case messages.FinishedRollout() if self.stream.arrived(message):
                for group in self.collector.add(message):
                    self.stream.finished(group)
            case messages.WindowClosed():
                self.stream.window_closed(message)

    def settle(self) -> None:
        """Take the rewards that have arrived; raises whatever keeps them from arriving."""
        for group in self.collector.settle():
            self.stream.finished(group)
