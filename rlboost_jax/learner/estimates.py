"""Advantages of trajectories, each as early as it can be known.

Most need nothing but the rewards of a group. A KL in the reward needs log-probabilities, and
generalised advantages need a critic, so they wait for the learner's look at the micro-batch;
whitening needs every reward of the batch, so nothing whitened is trained on before all is in.

Only sampled tokens have rewards, values and advantages. Token by token, what is given between two
of them takes no time: the second comes right after the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.algorithms.advantages import group_advantages, whitened
from rlboost_jax.algorithms.kl import kl_rewards
from rlboost_jax.algorithms.returns import generalized_advantages, rewards_to_go
from rlboost_jax.algorithms.shaping import overlong_penalty
from rlboost_jax.learner.trajectory import Trajectory
from rlboost_jax.sequences.endings import finish_reason
from rlboost_jax.settings.algorithm import AlgorithmConfig

ByToken = Mapping[int, NDArray[np.float32]]  # sample → one value for each sampled token


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What learner and critic say of responses before the first update of their batch."""

    policy: ByToken = field(default_factory=dict)  # log-probabilities as sampled, nats
    whole: ByToken = field(default_factory=dict)  # under the whole softmax
    reference: ByToken = field(default_factory=dict)  # the same of the reference model
    values: ByToken = field(default_factory=dict)  # in units of reward


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """How one run turns rewards into advantages."""

    algorithm: AlgorithmConfig
    max_response_tokens: int
    stop_ids: tuple[int, ...]

    @property
    def by_rewards_alone(self) -> bool:
        """Whether the rewards of a group are all that its advantages need."""
        return not (self.algorithm.kl_in_reward or self.algorithm.has_critic)

    def of_group(self, members: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
        """The trajectories of one prompt with all that their rewards alone can tell."""
        members = [replace(t, trained=self._trained(t)) for t in members]
        return self._estimated(members, None) if self.by_rewards_alone else tuple(members)

    def evaluated(self, members: Sequence[Trajectory], found: Scores) -> tuple[Trajectory, ...]:
        """The same of a group that the learner has looked at."""
        members = [
            replace(
                t,
                old_logprobs=found.policy.get(t.sample),
                old_values=found.values.get(t.sample),
            )
            for t in members
        ]
        return tuple(members) if self.by_rewards_alone else self._estimated(members, found)

    def of_batch(self, trajectories: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
        """All trajectories of a batch, whitened if the algorithm is.

        Args:
            trajectories: in (prompt, sample) order.
        """
        if not self.algorithm.whiten:
            return tuple(trajectories)
        advantages = whitened([_by_token(t) for t in trajectories])
        return tuple(
            replace(t, advantages=values.astype(np.float32))
            for t, values in zip(trajectories, advantages, strict=True)
        )

    def kl_of(self, t: Trajectory, found: Scores) -> float:
        """Sum of a response's KL estimates, nats; 0 unless the KL is in the reward."""
        if not self.algorithm.kl_in_reward:
            return 0.0
        return -float(self._kl_rewards(t, found, coefficient=1.0).sum())

    def shaped(self, trajectory: Trajectory) -> float:
        """The reward that advantages are made of; the reward itself goes into the metrics."""
        algorithm = self.algorithm
        if not algorithm.overlong_penalty:
            return trajectory.reward
        return trajectory.reward - overlong_penalty(
            trajectory.sequence.num_sampled,
            max_tokens=self.max_response_tokens,
            band_tokens=algorithm.overlong_band * self.max_response_tokens,
            penalty=algorithm.overlong_penalty,
        )

    def _trained(self, t: Trajectory) -> bool:
        reason = finish_reason(
            int(t.sequence.sampled_tokens[-1]),
            t.sequence.num_sampled,
            max_tokens=self.max_response_tokens,
            stop_ids=self.stop_ids,
        )
        return not (self.algorithm.overlong_filter and reason == "length")

    def _estimated(
        self, members: Sequence[Trajectory], found: Scores | None
    ) -> tuple[Trajectory, ...]:
        rewards = [self._rewards(t, found) for t in members]
        advantage = self.algorithm.advantage
        match advantage:
            case "return":
                return tuple(map(self._with_returns, members, rewards))
            case "gae":
                return tuple(map(self._with_values, members, rewards))
            case _:  # a `GroupAdvantage`
                outcomes = np.array([by_token.sum() for by_token in rewards])
                advantages = group_advantages(
                    outcomes, advantage=advantage, deviation=self.algorithm.deviation
                )
                each = zip(members, advantages, strict=True)
                return tuple(replace(t, advantage=float(value)) for t, value in each)

    def _rewards(self, t: Trajectory, found: Scores | None) -> NDArray[np.float64]:
        """By token: what the KL takes from each, and the outcome at the last one."""
        rewards = np.zeros(t.sequence.num_sampled)
        if self.algorithm.kl_in_reward and found is not None:
            rewards += self._kl_rewards(t, found, coefficient=self.algorithm.kl_coefficient)
        rewards[-1] += self.shaped(t)
        return rewards

    def _kl_rewards(
        self, t: Trajectory, found: Scores, *, coefficient: float
    ) -> NDArray[np.float64]:
        return kl_rewards(
            found.whole[t.sample],
            found.reference[t.sample],
            estimator=self.algorithm.kl_estimator,
            coefficient=coefficient,
        )

    def _with_returns(self, t: Trajectory, rewards: NDArray[np.float64]) -> Trajectory:
        advantages = rewards_to_go(rewards, discount=self.algorithm.discount)
        return replace(t, advantages=advantages.astype(np.float32))

    def _with_values(self, t: Trajectory, rewards: NDArray[np.float64]) -> Trajectory:
        algorithm = self.algorithm
        if t.old_values is None:
            raise ValueError(f"sample {t.sample} has no values of the critic")
        advantages, returns = generalized_advantages(
            rewards,
            t.old_values.astype(np.float64),
            discount=algorithm.discount,
            gae_lambda=algorithm.gae_lambda,
        )
        return replace(
            t, advantages=advantages.astype(np.float32), returns=returns.astype(np.float32)
        )


def _by_token(t: Trajectory) -> NDArray[np.float64]:
    if t.advantages is not None:
        return t.advantages.astype(np.float64)
    return np.full(t.sequence.num_sampled, t.advantage)
