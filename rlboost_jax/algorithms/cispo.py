"""CISPO: REINFORCE under a clipped weight, so that every token keeps a gradient.

Source: MiniMax 2025, arXiv:2506.13585, equations 4 and 5; section 3.1: no lower bound. The upper
one, a ratio of 5, is of Khatri et al. 2025, arXiv:2510.13786.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.algorithms.grpo import GRPO

CISPO: Final = replace(
    GRPO,
    name="cispo",
    advantage="group_std",  # A = (r - mean) / (deviation + 1e-4) of the group (`advantages.py`)
    ratio_level="token",  # ρ = π / π_old (`ratios.py`)
    surrogate="cispo",  # clip(ρ, 0, 5) A log π, the weight without a gradient (`surrogates.py`)
    clip_low=1.0,
    clip_high=4.0,
    loss_aggregation="token_mean",  # the mean over all tokens of the update
    kl_coefficient=0.0,  # no KL
)
