"""What the trainer must say again on its next stream to the manager, so that nothing is lost."""

from collections import deque

from rlboost_jax import messages
from rlboost_jax.learner.fleet.score_requests import ScoreRequests
from rlboost_jax.sequences.identities import Batch


class Unsettled:
    """The trainer's messages that a manager may not have, or may lose.

    Attributes:
        end: the message to say last; None while the run goes on.
        scores: questions to servers about teachers; None where they are asked nothing.
    """

    def __init__(self, versions: int) -> None:
        """Start with nothing to say.

        Args:
            versions: how many of the newest are said again.
        """
        self._publishes: deque[messages.Publish] = deque(maxlen=versions)
        self._teach: messages.Teach | None = None
        self._open: dict[Batch, messages.BeginBatch] = {}
        self._extends: dict[Batch, list[messages.ExtendBatch]] = {}  # of the open batches
        self._trained: messages.BatchTrained | None = None  # not yet answered
        self.end: messages.EndRun | None = None
        self.scores: ScoreRequests | None = None

    def remember(self, message: messages.TrainerMessage) -> None:
        """Note a message that is sent for the first time."""
        match message:
            case messages.Publish():
                self._publishes.append(message)
            case messages.Teach():
                self._teach = message
            case messages.BeginBatch():
                self._open[message.batch], self._extends[message.batch] = message, []
            case messages.ExtendBatch():
                self._extends.setdefault(message.batch, []).append(message)
            case messages.BatchTrained():
                self._trained = message
            case messages.EndRun():
                self.end = message

    def reported(self, batch: Batch) -> None:
        """Forget a batch of which the manager has given its report."""
        self._open.pop(batch, None)
        self._extends.pop(batch, None)
        if self.scores is not None:
            self.scores.over(batch)
        if self._trained is not None and self._trained.batch == batch:
            self._trained = None

    def again(self) -> list[messages.TrainerMessage]:
        """Return all messages but the end, in order."""
        found: list[messages.TrainerMessage] = [*self._publishes]
        if self._teach is not None:
            found.append(self._teach)
        for batch, begin in self._open.items():
            found += [begin, *self._extends[batch]]
        if self.scores is not None:
            found += self.scores.open()
        if self._trained is not None:
            found.append(self._trained)
        return found
