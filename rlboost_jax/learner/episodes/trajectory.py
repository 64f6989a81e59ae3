"""Finished episodes as the learner sees them: host-side records of NumPy arrays."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.rewards.verdict import UNJUDGED, Verdict
from rlboost_jax.sequences.sequence import Sequence


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """A finished episode: a sequence, or several if its environment restarted it with new prompts.

    Entry i of every array is about its sampled token i, counted through all its sequences.
    """

    prompt: int  # index of the prompt within the step
    sample: int  # index of the response within the step
    sequence: Sequence  # the first one
    later: tuple[Sequence, ...] = ()  # those after it
    verdict: Verdict = UNJUDGED
    advantage: float  # of all sampled tokens, unless `advantages` has one for each
    trained: bool = True  # False: it is in no loss
    fills_up: bool = False  # its group has nothing to tell apart and is in no mean of the batch
    advantages: NDArray[np.float32] | None = None
    old_logprobs: NDArray[np.float32] | None = None  # nats, of the learner before the first update
    old_values: NDArray[np.float32] | None = None  # of the critic before the first update
    returns: NDArray[np.float32] | None = None  # what the critic is to expect
    # Nats; where servers score for teachers, or the loss has a KL to them.
    teacher_logprobs: NDArray[np.float32] | None = None
    data: str = ""  # name of its prompt's data set, in a mixture
    batch: int | None = None  # whose noise sampled it; None: not known, and no choice is checked
    attempts: tuple[int, ...] = (0,)  # of each sequence, see `FinishedRollout`; in no digest

    @property
    def reward(self) -> float:
        return self.verdict.reward

    @property
    def left_out(self) -> str:
        """Why nobody knows its reward; such an episode is not in its group's mean either."""
        return self.verdict.left_out

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """All sequences, in order."""
        return self.sequence, *self.later

    @property
    def num_sampled(self) -> int:
        return sum(sequence.num_sampled for sequence in self.sequences)

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Log-probabilities of its sampled tokens, in nats, as recorded when they were sampled."""
        return _joined([sequence.logprobs for sequence in self.sequences])

    @property
    def turns(self) -> tuple[int, ...]:
        """Number of sampled tokens of each turn. A turn is a run of consecutive sampled tokens."""
        return tuple(count for sequence in self.sequences for count in sequence.runs[1::2])

    @property
    def response(self) -> NDArray[np.int32]:
        """Tokens that its rewards see: those after the prompt, of each of its sequences."""
        return _joined([sequence.continuation for sequence in self.sequences])


@dataclass(frozen=True, kw_only=True)
class Group:
    """The trajectories of one prompt, by sample."""

    prompt: int
    trajectories: tuple[Trajectory, ...]


def trajectories_digest(trajectories: Iterable[Trajectory]) -> str:
    """SHA-256 of a step's sampled tokens, in (prompt, sample, sequence) order, to the last bit.

    Covers all tokens and which of them were sampled, the bits of the behaviour log-probabilities,
    the policy versions and what routes there are; not the order of arrival, nor what follows
    from these. An episode of one sequence is named by prompt and sample alone.
    """
    digest = hashlib.sha256()
    for t in sorted(trajectories, key=lambda t: (t.prompt, t.sample)):
        for place, sequence in enumerate(t.sequences):
            which = f" {place}" if place else ""
            digest.update(f"{t.prompt} {t.sample}{which}\n".encode())
            for part in sequence.digested():
                digest.update(part)
    return digest.hexdigest()


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate arrays; a single one is returned as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
