"""The trainer's questions to servers about teachers: the scores of each sequence that has arrived.

A sequence is asked about once, under a number of its own. Questions without an answer when a stream
ends are repeated on the next one: scoring twice gives the same bits.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.messages import ScoreTokens, TokenScores, pack_tokens, unpack_logprobs
from rlboost_jax.sequences.identities import Batch
from rlboost_jax.sequences.sequence import Sequence as Tokens
from rlboost_jax.settings.distillation_config import DistillationConfig

Scores = NDArray[np.float32]


class _Scored:
    """An episode whose sequences are being scored.

    Attributes:
        scores: scores of its sampled tokens, through all its sequences, once all are there.
    """

    def __init__(self, sequences: Sequence[Tokens]) -> None:
        self._sequences = sequences
        self._found: dict[int, Scores] = {}  # by place of the sequence
        self.scores: Future[Scores] = Future()
        self.scores.set_running_or_notify_cancel()

    def take(self, place: int, logprobs: bytes) -> None:
        """Add the scores of all tokens of a sequence after its prompt."""
        sequence = self._sequences[place]
        sampled = sequence.sampled_positions - sequence.runs[0]
        self._found[place] = unpack_logprobs(logprobs)[sampled]
        if len(self._found) == len(self._sequences):
            self.scores.set_result(np.concatenate([self._found[i] for i in sorted(self._found)]))


class ScoreRequests:
    """The questions that are open. May be used from several threads.

    Args:
        teachers: digests of their parameters, in the order of the settings.
        send: sends a question on the stream of the moment, if there is one.
    """

    def __init__(
        self,
        distillation: DistillationConfig,
        teachers: Sequence[str],
        send: Callable[[ScoreTokens], None],
        *,
        temperature: float,
    ) -> None:
        self._distillation, self._temperature = distillation, temperature
        self._teachers, self._send = tuple(teachers), send
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # guards `_open`
        # By number: the question, its episode, and the place of the sequence in that.
        self._open: dict[int, tuple[ScoreTokens, _Scored, int]] = {}

    def __len__(self) -> int:
        """Number of questions without an answer."""
        return len(self._open)

    def ask(self, trajectory: Trajectory) -> Future[Scores] | None:
        """Ask for the scores of an episode's sampled tokens; None if it has no teacher.

        Args:
            trajectory: an episode of an open batch.
        """
        place = self._distillation.teacher_of(trajectory.data)
        if place < 0:
            return None
        assert trajectory.batch is not None, "an episode that has arrived"
        episode = _Scored(trajectory.sequences)
        items = []
        with self._lock:
            for index, sequence in enumerate(trajectory.sequences):
                item = ScoreTokens(
                    number=next(self._numbers),
                    batch=Batch(trajectory.batch),
                    teacher=self._teachers[place],
                    temperature=self._temperature,
                    first=sequence.runs[0],
                    tokens=pack_tokens(sequence.tokens[: sequence.trained_length]),
                )
                self._open[item.number] = item, episode, index
                items.append(item)
        for item in items:
            self._send(item)
        return episode.scores

    def open(self) -> tuple[ScoreTokens, ...]:
        """Return the questions without an answer, the oldest first."""
        with self._lock:
            return tuple(item for item, _, _ in self._open.values())

    def take(self, answer: TokenScores) -> None:
        """Process the manager's answer; one that nobody waits for changes nothing."""
        with self._lock:
            found = self._open.pop(answer.number, None)
        if found is not None:
            _, episode, place = found
            episode.take(place, answer.logprobs)

    def over(self, batch: int) -> None:
        """Forget the questions about a batch that is over."""
        with self._lock:
            left = {n: each for n, each in self._open.items() if each[0].batch != batch}
            self._open = left
