"""Finished rollouts of one step, each taken once, and the groups they make."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rlboost_jax import messages
from rlboost_jax.learner.trajectory import Group, Trajectory

Reward = Callable[[int, NDArray[np.int32]], float]
Estimate = Callable[[Sequence[Trajectory]], tuple[Trajectory, ...]]


class WrongVersion(RuntimeError):
    """A token was sampled by another policy version than the one being updated."""


class StepCollector:
    """Invariant: a (prompt, sample) is taken at most once, whatever arrives."""

    def __init__(
        self,
        step: int,
        *,
        version: int,
        prompts: Sequence[NDArray[np.int32]],
        group_size: int,
        reward: Reward,
        estimate: Estimate,
    ):
        """Args:
        reward: (prompt index, response tokens) → reward.
        estimate: gives the trajectories of a whole group their advantages.
        """
        self.step, self._version = step, version
        self._prompts, self._group_size, self._reward = prompts, group_size, reward
        self._estimate = estimate
        self._taken: dict[int, Trajectory] = {}
        self.groups: dict[int, Group] = {}  # finished ones, by prompt

    @property
    def complete(self) -> bool:
        return len(self.groups) == len(self._prompts)

    def trajectories(self) -> tuple[Trajectory, ...]:
        """Those of the finished groups in (prompt, sample) order."""
        return tuple(t for _, group in sorted(self.groups.items()) for t in group.trajectories)

    def add(self, rollout: messages.FinishedRollout) -> Group | None:
        """Take one rollout; returns its group if that is now finished.

        Rollouts of other steps, repeated ones and unknown samples change nothing.

        Raises:
            WrongVersion: a token has another version than the step's.
        """
        place = rollout.sample - rollout.prompt * self._group_size
        known = 0 <= rollout.prompt < len(self._prompts) and 0 <= place < self._group_size
        if rollout.step != self.step or not known or rollout.sample in self._taken:
            return None
        if any(version != self._version for version, _ in rollout.versions):
            raise WrongVersion(
                f"step {self.step}, sample {rollout.sample}: tokens of versions "
                f"{sorted({v for v, _ in rollout.versions})}, expected {self._version} only"
            )
        tokens = messages.unpack_tokens(rollout.tokens)
        self._taken[rollout.sample] = Trajectory(
            prompt=rollout.prompt,
            sample=rollout.sample,
            prompt_tokens=self._prompts[rollout.prompt],
            response_tokens=tokens,
            behaviour_logprobs=messages.unpack_logprobs(rollout.logprobs),
            policy_versions=np.full(len(tokens), self._version, np.int32),
            reward=self._reward(rollout.prompt, tokens),
            advantage=0.0,
            attempt=rollout.attempt,
        )
        return self._group_if_finished(rollout.prompt)

    def reject(self, samples: Iterable[int]) -> None:
        """Forget rollouts whose tokens are not believed: they will arrive once more."""
        for sample in samples:
            taken = self._taken.pop(sample, None)
            if taken is not None:
                self.groups.pop(taken.prompt, None)

    def _group_if_finished(self, prompt: int) -> Group | None:
        samples = range(prompt * self._group_size, (prompt + 1) * self._group_size)
        if any(sample not in self._taken for sample in samples):
            return None
        members = [self._taken[sample] for sample in samples]
        group = Group(prompt=prompt, trajectories=self._estimate(members))
        self.groups[prompt] = group
        return group
