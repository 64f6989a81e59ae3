"""Advantages of trajectories, each computed as early as its inputs are known.

Most need nothing but the rewards of a group. A KL in the reward needs log-probabilities, and
generalised advantages need a critic, so they wait for the learner's look at the micro-batch;
whitening needs every reward of the batch, so nothing whitened is trained on before all is in.

Only sampled tokens have rewards, values and advantages. Token by token, what is given between two
of them takes no time: the second comes right after the first. That is so from one sequence of an
episode to the next as well: an advantage is an episode's, or of a turn of it, and not a sequence's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.algorithms.advantages import group_advantages, turn_advantages, whitened
from rlboost_jax.algorithms.kl import kl_rewards
from rlboost_jax.algorithms.returns import generalized_advantages, rewards_to_go
from rlboost_jax.algorithms.shaping import overlong_penalty
from rlboost_jax.learner.episodes.raw_rewards import batch_differs, turn_returns
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.settings.algorithm_config import AlgorithmConfig, ComparingAdvantage

ByToken = Mapping[int, NDArray[np.float32]]  # sample → one value for each sampled token


@dataclass(frozen=True, kw_only=True)
class ResponseScores:
    """Log-probabilities and values of responses, taken before the first update of a batch."""

    policy: ByToken = field(default_factory=dict)  # log-probabilities as sampled, nats
    whole: ByToken = field(default_factory=dict)  # under the whole softmax
    reference: ByToken = field(default_factory=dict)  # the same of the reference model
    values: ByToken = field(default_factory=dict)  # in units of reward


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """Advantage estimation of one run."""

    algorithm: AlgorithmConfig
    max_response_tokens: int
    stop_ids: tuple[int, ...]
    stops: bytes = b""  # of the stop strings

    @property
    def by_rewards_alone(self) -> bool:
        """Whether advantages need nothing but the rewards of a group."""
        return not (self.algorithm.kl_in_reward or self.algorithm.has_critic)

    def of_group(self, members: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
        """Add the advantages that follow from the rewards of one prompt's trajectories alone."""
        members = [replace(t, trained=self._trained(t)) for t in members]
        return self._estimated(members, None) if self.by_rewards_alone else tuple(members)

    def evaluated(
        self, members: Sequence[Trajectory], found: ResponseScores
    ) -> tuple[Trajectory, ...]:
        """Add the advantages of a group that the learner has scored."""
        members = [
            replace(
                t,
                old_logprobs=found.policy.get(t.sample),
                old_values=found.values.get(t.sample),
            )
            for t in members
        ]
        known = self.by_rewards_alone or any(t.fills_up for t in members)
        return tuple(members) if known else self._estimated(members, found)

    def of_batch(self, trajectories: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
        """Whiten the advantages of a batch, if the algorithm says so.

        Trajectories left out, and those that only fill the batch up, are neither in the mean nor in
        the deviation.

        Advantages that compare nothing within groups are exactly 0 where all raw rewards of the
        batch are equal: a constant reward has no gradient. Returns, for the critic, stay.

        Args:
            trajectories: in (prompt, sample) order.
        """
        counted = [t for t in trajectories if not (t.left_out or t.fills_up)]
        if not (self.algorithm.needs_batch and counted):
            return tuple(trajectories)
        if not (self.algorithm.compares_groups or batch_differs(counted)):
            advantages = [np.zeros(t.num_sampled) for t in counted]
        elif self.algorithm.whiten:
            advantages = whitened([_by_token(t) for t in counted])
        else:
            return tuple(trajectories)
        found = {
            t.sample: replace(t, advantages=values.astype(np.float32))
            for t, values in zip(counted, advantages, strict=True)
        }
        return tuple(found.get(t.sample, t) for t in trajectories)

    def kl_of(self, t: Trajectory, found: ResponseScores) -> float:
        """Sum of a response's KL estimates, nats; 0 unless the KL is in the reward."""
        if not self.algorithm.kl_in_reward:
            return 0.0
        return -float(self._kl_rewards(t, found, coefficient=1.0).sum())

    def shaped(self, trajectory: Trajectory) -> float:
        """Shaped reward, from which advantages are computed; metrics have the raw reward."""
        algorithm = self.algorithm
        if not algorithm.overlong_penalty:
            return trajectory.reward
        return trajectory.reward - overlong_penalty(
            trajectory.num_sampled,
            max_tokens=self.max_response_tokens,
            band_tokens=algorithm.overlong_band * self.max_response_tokens,
            penalty=algorithm.overlong_penalty,
        )

    def _trained(self, t: Trajectory) -> bool:
        cut_off = not stopped(t.sequences[-1].newest_turn, self.stop_ids, self.stops)
        return not (t.left_out or (self.algorithm.overlong_filter and cut_off))

    def _estimated(
        self, members: Sequence[Trajectory], found: ResponseScores | None
    ) -> tuple[Trajectory, ...]:
        advantage = self.algorithm.chosen_advantage
        match advantage:
            case "return":
                return tuple(self._with_returns(t, self._in_turns(t, found)) for t in members)
            case "gae":
                return tuple(self._with_values(t, self._in_turns(t, found)) for t in members)
            case _:  # a `ComparingAdvantage`
                return self._compared(members, found, advantage)

    def _compared(
        self,
        members: Sequence[Trajectory],
        found: ResponseScores | None,
        advantage: ComparingAdvantage,
    ) -> tuple[Trajectory, ...]:
        """Advantages within a group, without the members left out.

        Nor are rewards compared that differ by what shapes them alone (a penalty, a KL): their
        advantages are exactly 0.
        """
        counted = [t for t in members if not t.left_out]
        match self.algorithm.turn_advantages:
            case "episode":
                episodes = self._of_episodes(counted, found, advantage)
                compared = [
                    replace(t, advantage=float(value))
                    for t, value in zip(counted, episodes, strict=True)
                ]
            case "turn":
                compared = _by_turn(counted, self._of_turns(counted, found, advantage))
            case "both":
                turns = self._of_turns(counted, found, advantage)
                episodes = self._of_episodes(counted, found, advantage)
                sums = [values + value for values, value in zip(turns, episodes, strict=True)]
                compared = _by_turn(counted, sums)
            case _:
                assert_never(self.algorithm.turn_advantages)
        done = {t.sample: t for t in compared}
        return tuple(done.get(t.sample, t) for t in members)

    def _of_episodes(
        self,
        members: Sequence[Trajectory],
        found: ResponseScores | None,
        advantage: ComparingAdvantage,
    ) -> NDArray[np.float64]:
        """Advantage of each episode."""
        outcomes = np.array([self._rewards(t, found).sum() for t in members])
        return group_advantages(
            outcomes,
            advantage=advantage,
            deviation=self.algorithm.deviation,
            raw=np.array([t.reward for t in members]),
        )

    def _of_turns(
        self,
        members: Sequence[Trajectory],
        found: ResponseScores | None,
        advantage: ComparingAdvantage,
    ) -> list[NDArray[np.float64]]:
        """Advantages of each episode, turn by turn."""
        returns = []
        for t in members:
            firsts = np.cumsum((0, *t.turns[:-1]))
            by_turn = np.add.reduceat(self._in_turns(t, found), firsts)
            returns.append(rewards_to_go(by_turn, discount=self.algorithm.turn_discount))
        return turn_advantages(
            returns,
            advantage=advantage,
            deviation=self.algorithm.deviation,
            raw=[turn_returns(t, self.algorithm) for t in members],
        )

    def _rewards(self, t: Trajectory, found: ResponseScores | None) -> NDArray[np.float64]:
        """Reward of each token: the KL penalties, and the outcome at the last token."""
        rewards = np.zeros(t.num_sampled)
        if self.algorithm.kl_in_reward and found is not None:
            rewards += self._kl_rewards(t, found, coefficient=self.algorithm.kl_coefficient)
        rewards[-1] += self.shaped(t)
        return rewards

    def _in_turns(self, t: Trajectory, found: ResponseScores | None) -> NDArray[np.float64]:
        """Reward of each token, with each turn's reward at its last token.

        What the turns' rewards do not add up to (a reward function's part, a penalty) stays at the
        last token of the episode.
        """
        rewards = self._rewards(t, found)
        if by_turn := t.verdict.turn_rewards:
            rewards[-1] -= math.fsum(by_turn)
            rewards[np.cumsum(t.turns) - 1] += by_turn
        return rewards

    def _kl_rewards(
        self, t: Trajectory, found: ResponseScores, *, coefficient: float
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


def _by_turn(
    members: Sequence[Trajectory], advantages: Sequence[NDArray[np.float64]]
) -> list[Trajectory]:
    """Set the advantages turn by turn: all tokens of a turn have the same."""
    return [
        replace(t, advantages=np.repeat(values, t.turns).astype(np.float32))
        for t, values in zip(members, advantages, strict=True)
    ]


def _by_token(t: Trajectory) -> NDArray[np.float64]:
    if t.advantages is not None:
        return t.advantages.astype(np.float64)
    return np.full(t.num_sampled, t.advantage)
