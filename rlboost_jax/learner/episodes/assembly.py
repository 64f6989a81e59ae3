"""Episodes of a batch, put together from the sequences that a manager delivers.

Most have one sequence. An environment that rewrites its conversation begins another one, and the
episode is whole with the sequence that says it is the last.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlboost_jax import messages
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.sequences.identities import Work
from rlboost_jax.sequences.sequence import Sequence


@dataclass(frozen=True, kw_only=True)
class DeliveredEpisode:
    """A complete episode that is not judged yet.

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
        """Tokens that reward functions see: those after the prompt, of each of its sequences."""
        if len(self.sequences) == 1:
            return self.sequences[0].continuation
        return np.concatenate([sequence.continuation for sequence in self.sequences])

    @property
    def num_sampled(self) -> int:
        return sum(sequence.num_sampled for sequence in self.sequences)

    def trajectory(self, *, data: str = "", trained: bool = True) -> Trajectory:
        """Make a trajectory that has neither a verdict nor an advantage yet.

        Args:
            data, trained: see `Trajectory`.
        """
        first, *later = self.sequences
        return Trajectory(
            prompt=self.work.prompt,
            sample=self.work.sample,
            sequence=first,
            later=tuple(later),
            advantage=0.0,
            trained=trained,
            data=data,
            batch=self.work.batch,
            attempts=self.attempts,
        )


class Arrivals:
    """Sequences that have arrived, by sample.

    A manager delivers the sequences of an episode in order. One that it delivers again takes the
    place of the one before, and those after that count no more: they come again, or others do. A
    whole episode takes nothing more, until it is dropped.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # of sequences, by sample
        self._whole: set[int] = set()

    @property
    def num_whole(self) -> int:
        return len(self._whole)

    def take(self, rollout: messages.FinishedRollout) -> bool:
        """Record a sequence; return whether it counts."""
        sample, place = rollout.work.sample, rollout.work.sequence
        if sample in self._whole or place > self._counts.get(sample, 0):
            return False  # of what was dropped, in the second case: those before it are missing
        self._counts[sample] = place + 1
        if rollout.last:
            self._whole.add(sample)
        return True

    def is_whole(self, sample: int) -> bool:
        return sample in self._whole

    def drop(self, sample: int) -> None:
        """Forget an episode: it will be delivered again, from its first sequence on."""
        self._counts.pop(sample, None)
        self._whole.discard(sample)


class Episodes:
    """Sequences that have arrived of each sample, until they form an episode."""

    def __init__(self) -> None:
        self._arrivals = Arrivals()
        self._parts: dict[int, list[tuple[Sequence, int]]] = {}  # with attempts, by sample

    def take(
        self, rollout: messages.FinishedRollout, sequence: Sequence
    ) -> DeliveredEpisode | None:
        """Add a sequence; return its episode if that completes it, else None.

        Args:
            sequence: what the rollout is made of.
        """
        if not self._arrivals.take(rollout):
            return None
        work = rollout.work
        parts = self._parts.setdefault(work.sample, [])
        parts[work.sequence :] = [(sequence, rollout.attempt)]
        if not self._arrivals.is_whole(work.sample):
            return None
        sequences, attempts = zip(*parts, strict=True)
        first = msgspec.structs.replace(work, sequence=0)
        return DeliveredEpisode(work=first, sequences=sequences, attempts=attempts)

    def drop(self, sample: int) -> None:
        """Forget an episode, see `Arrivals`."""
        self._arrivals.drop(sample)
        self._parts.pop(sample, None)
