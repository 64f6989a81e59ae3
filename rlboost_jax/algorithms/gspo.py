"""GSPO: GRPO with one ratio for a response, the geometric mean of its tokens' ratios.

Source: Zheng et al. 2025, arXiv:2507.18071, equation 7; bounds from section 5.1. The paper divides
a batch into four mini-batches: set `algorithm.mini_batches`, for with one the ratio is 1. Its token
form, equation 14, is `ratio_level="sequence_token"`.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.algorithms.grpo import GRPO

GSPO: Final = replace(
    GRPO,
    name="gspo",
    advantage="group_std",  # A = (r - mean) / (deviation + 1e-4) of the group (`advantages.py`)
    ratio_level="sequence",  # s = exp(mean over tokens of log π / π_old) (`ratios.py`)
    surrogate="clip",  # min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A) (`surrogates.py`, `clipped`)
    clip_low=3e-4,
    clip_high=4e-4,
    loss_aggregation="sequence_mean",  # the mean over responses
    kl_coefficient=0.0,  # no KL
)
