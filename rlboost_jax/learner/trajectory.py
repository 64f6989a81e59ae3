"""Finished rollouts as the learner sees them: host-side records of NumPy arrays."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One finished response. Entry i of every response array is about response token i."""

    prompt: int  # index of the prompt within the step
    sample: int  # index of the response within the step
    prompt_tokens: NDArray[np.int32]
    response_tokens: NDArray[np.int32]
    behaviour_logprobs: NDArray[np.float32]  # nats, as recorded when the token was sampled
    policy_versions: NDArray[np.int32]
    reward: float
    advantage: float  # of all tokens, unless `advantages` has one for each
    trained: bool = True  # False: it counts in its group's mean and in no loss
    advantages: NDArray[np.float32] | None = None
    old_logprobs: NDArray[np.float32] | None = None  # nats, of the learner before the first update
    old_values: NDArray[np.float32] | None = None  # of the critic before the first update
    returns: NDArray[np.float32] | None = None  # what the critic is to expect
    # [positions, layers, experts] of all tokens but the last, prompt included; None: not recorded
    routes: NDArray[np.unsignedinteger] | None = None
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

    Covers the tokens of prompts and responses, the bits of the behaviour log-probabilities,
    the policy versions and what routes there are; not the order of arrival, nor what follows
    from these.
    """
    digest = hashlib.sha256()
    for t in sorted(trajectories, key=lambda t: (t.prompt, t.sample)):
        digest.update(f"{t.prompt} {t.sample}\n".encode())
        for values, dtype in (
            (t.prompt_tokens, "<i4"),
            (t.response_tokens, "<i4"),
            (t.behaviour_logprobs, "<f4"),
            (t.policy_versions, "<i4"),
        ):
            data = np.asarray(values, dtype).tobytes()
            digest.update(f"{len(data)}\n".encode() + data)
        if t.routes is not None:
            digest.update(np.asarray(t.routes, "<u2").tobytes())
    return digest.hexdigest()
