"""Episodes of a batch, put together from the sequences that a manager delivers.

Most have one sequence. An environment that rewrites its conversation begins another one, and the
episode is whole with the sequence that says it is the last.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlboost_jax import messages
from rlboost_jax.data.exercises import Exercises, Prompt
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Work
from rlboost_jax.sequences.sequence import Sequence

Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One that is whole and not judged yet.

    Attributes:
        work: of its first sequence.
        sequences: all of them, in order; at least one.
        attempts: of each, see `FinishedRollout`.
    """

    work: Work
    sequences: tuple[Sequence, ...]
    attempts: tuple[int, ...]

    @property
    def response(self) -> NDArray[np.int32]:
        """What reward functions see: all after the prompt, of each of its sequences."""
        if len(self.sequences) == 1:
            return self.sequences[0].continuation
        return np.concatenate([sequence.continuation for sequence in self.sequences])

    @property
    def num_sampled(self) -> int:
        return sum(sequence.num_sampled for sequence in self.sequences)


# What is said of an episode, then or later. An exception in it is no fault of the episode's.
Judge = Callable[[Prompt, Episode], Future[Verdict]]


def by_response(exercises: Exercises) -> Judge:
    """The judge of a run without an environment: its reward functions see the response."""
    return lambda prompt, episode: exercises.ask(prompt, episode.response)


class Episodes(Generic[Part]):
    """What has come of each episode of a batch, by sample.

    A manager delivers the sequences of an episode in order. One that it delivers again takes the
    place of the one before, and those after that count no more: they come again, or others do. Of
    an episode that is whole nothing is taken any more, until it is dropped.
    """

    def __init__(self) -> None:
        self._parts: dict[int, list[Part]] = {}
        self._whole: set[int] = set()

    @property
    def num_whole(self) -> int:
        return len(self._whole)

    def take(self, rollout: messages.FinishedRollout, part: Part) -> bool:
        """Whether a sequence counts.

        Args:
            part: what is kept of it.
        """
        sample, place = rollout.work.sample, rollout.work.sequence
        parts = self._parts.setdefault(sample, [])
        if sample in self._whole or place > len(parts):  # else those before it are dropped
            return False
        parts[place:] = [part]
        if rollout.last:
            self._whole.add(sample)
        return True

    def whole(self, sample: int) -> tuple[Part, ...] | None:
        """What was kept of the sequences of an episode, in order; None: some are missing."""
        return tuple(self._parts[sample]) if sample in self._whole else None

    def drop(self, sample: int) -> None:
        """Forget all of an episode: it comes again, from its first sequence on."""
        self._parts.pop(sample, None)
        self._whole.discard(sample)
