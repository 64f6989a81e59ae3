"""Finished rollouts as the learner sees them: host-side records of NumPy arrays."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.sequences.sequence import Sequence


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One finished sequence. Entry i of every array is about its sampled token i."""

    prompt: int  # index of the prompt within the step
    sample: int  # index of the response within the step
    sequence: Sequence
    reward: float
    advantage: float  # of all sampled tokens, unless `advantages` has one for each
    trained: bool = True  # False: it counts in its group's mean and in no loss
    advantages: NDArray[np.float32] | None = None
    old_logprobs: NDArray[np.float32] | None = None  # nats, of the learner before the first update
    old_values: NDArray[np.float32] | None = None  # of the critic before the first update
    returns: NDArray[np.float32] | None = None  # what the critic is to expect
    attempt: int = 0  # see `FinishedRollout`; no part of any digest
    # What each reward function returned, before its weight, and why those that failed did.
    reward_components: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    reward_faults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, kw_only=True)
class Group:
    """The trajectories of one prompt, by sample."""

    prompt: int
    trajectories: tuple[Trajectory, ...]


def trajectories_digest(trajectories: Iterable[Trajectory]) -> str:
    """SHA-256 of a step: who sampled what, in (prompt, sample) order, to the last bit.

    Covers all tokens and which of them were sampled, the bits of the behaviour log-probabilities,
    the policy versions and what routes there are; not the order of arrival, nor what follows
    from these.
    """
    digest = hashlib.sha256()
    for t in sorted(trajectories, key=lambda t: (t.prompt, t.sample)):
        digest.update(f"{t.prompt} {t.sample}\n".encode())
        for part in t.sequence.digested():
            digest.update(part)
    return digest.hexdigest()
