"""Raw rewards, as the data gives them, and whether a group or batch has different ones.

Nothing that shapes rewards is in them: no penalty of overlong responses, no KL, no discount by
token. Where raw rewards are equal there is nothing to learn from comparing, and dynamic sampling,
advantages and metrics all ask here whether they are.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.algorithms.advantages import comparable, differ
from rlboost_jax.algorithms.returns import rewards_to_go
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.settings.algorithm_config import AlgorithmConfig


def turn_rewards(t: Trajectory) -> NDArray[np.float64]:
    """Reward of each turn; the last one has what the turns do not add up to."""
    rewards = np.zeros(len(t.turns))
    if t.verdict.turn_rewards:
        rewards += t.verdict.turn_rewards
    rewards[-1] += t.reward - math.fsum(t.verdict.turn_rewards)
    return rewards


def turn_returns(t: Trajectory, algorithm: AlgorithmConfig) -> NDArray[np.float64]:
    """Raw reward from each turn on, with the discount by turn."""
    return rewards_to_go(turn_rewards(t), discount=algorithm.turn_discount)


def informative(members: Sequence[Trajectory], algorithm: AlgorithmConfig) -> bool:
    """Whether a group belongs in a batch of dynamic sampling.

    It has something to compare, and not all of it is filtered.

    With `dynamic_sampling_by="first_function"` that has to be so by the first reward function (or
    the environment) alone, too. Responses about which it says nothing are not compared then; where
    it says nothing about any, the whole reward decides.

    Args:
        members: responses to one prompt that count, those left out being left out.
    """
    if not (any(t.trained for t in members) and _compared_differ(members, algorithm)):
        return False
    alone = [
        replace(t, verdict=replace(t.verdict, reward=t.verdict.outcome))
        for t in members
        if t.verdict.outcome is not None
    ]
    by_reward = algorithm.dynamic_sampling_by == "reward"
    return by_reward or not alone or _compared_differ(alone, algorithm)


def batch_differs(members: Sequence[Trajectory]) -> bool:
    """Whether any two responses of a batch have different rewards, or the same in other turns."""
    by_turn = [turn_rewards(t) for t in members]
    return differ([t.reward for t in members]) or _any_turn_differs(by_turn)


def _compared_differ(members: Sequence[Trajectory], algorithm: AlgorithmConfig) -> bool:
    """Whether any comparison that the algorithm makes within a group has unequal sides."""
    whole = algorithm.turn_advantages != "turn" and comparable(
        [t.reward for t in members], algorithm.chosen_advantage
    )
    if whole or algorithm.turn_advantages == "episode":
        return whole
    return _any_turn_differs([turn_returns(t, algorithm) for t in members])


def _any_turn_differs(by_turn: Sequence[NDArray[np.float64]]) -> bool:
    """Whether the k-th numbers differ, for any k, among those that have a k-th one."""
    most = max(map(len, by_turn), default=0)
    return any(differ([e[turn] for e in by_turn if len(e) > turn]) for turn in range(most))
