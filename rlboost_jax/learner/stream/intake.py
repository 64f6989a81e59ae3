"""What arrives for one open batch, taken and judged whichever batch is being trained on."""

from typing import Protocol, runtime_checkable

from rlboost_jax import messages
from rlboost_jax.learner.answers import Answers
from rlboost_jax.learner.collector import StepCollector
from rlboost_jax.learner.stream.step_stream import StepStream


@runtime_checkable
class Measured(Protocol):
    """Responses that are generated with the step and not trained on: a `Measurement`."""

    def take(self, rollout: messages.FinishedRollout, /) -> bool: ...
    def withdraw(self, withdrawn: messages.Withdrawn, /) -> None: ...


class Intake:
    """Messages in; the batch's stream hears of what counts for it.

    What is of another batch changes nothing, so that each open batch may be given everything.
    """

    def __init__(
        self,
        stream: StepStream,
        collector: StepCollector,
        measured: Measured | None = None,
        answers: Answers | None = None,
    ) -> None:
        """
        Args:
            measured: takes the responses that are its own.
            answers: to those whose turn is over.
        """
        self.stream, self.collector, self.measured = stream, collector, measured
        self.answers = answers

    def take(self, message: messages.ToTrainer) -> None:
        """Raises WrongVersion."""
        match message:
            case messages.FinishedRollout():
                if self.measured is not None and self.measured.take(message):
                    return
                if self.stream.arrived(message):
                    self._finish(message)
            case messages.Parked() if self.answers is not None:
                self.answers.take(message)
            case messages.Withdrawn() if self.measured is not None:
                self.measured.withdraw(message)
            case messages.WindowClosed():
                self.stream.window_closed(message)

    def settle(self) -> None:
        """Take the answers of rewards that have come; raises whatever keeps them from coming."""
        for group in self.collector.settle():
            self.stream.finished(group)

    def _finish(self, rollout: messages.FinishedRollout) -> None:
        for group in self.collector.add(rollout):
            self.stream.finished(group)
