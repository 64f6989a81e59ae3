"""RLOO: REINFORCE with the mean reward of the prompt's other responses as its baseline.

Source: Ahmadian et al. 2024, arXiv:2402.14740, equations 6 and 7: the KL is part of the reward, and
a response counts as one action.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.algorithms.grpo import GRPO

RLOO: Final = replace(
    GRPO,
    name="rloo",
    advantage="leave_one_out",  # A = r - mean of the others of the group (`advantages.py`)
    ratio_level="token",  # no ratio is taken
    surrogate="reinforce",  # A log π (`surrogates.py`)
    loss_aggregation="sequence_sum",  # the mean over responses of the sum over tokens
    kl_coefficient=0.03,  # r is less by β times the response's sum of k1 (`kl.py`, `kl_rewards`)
    kl_estimator="k1",
    kl_placement="reward",
)
