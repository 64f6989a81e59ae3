"""DAPO: GRPO with a wider upper clip, all tokens alike, and only groups that teach something.

Source: Yu et al. 2025, arXiv:2503.14476, section 3 and table 1: the clip bounds are of section
3.1, the penalty of equation 13. The last 4,096 of 20,480 tokens are punished, which is a fifth.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.algorithms.grpo import GRPO

DAPO: Final = replace(
    GRPO,
    name="dapo",
    advantage="group_std",  # A = (r - mean) / (deviation + 1e-4) of the group (`advantages.py`)
    overlong_penalty=1.0,  # r is less by 0 to 1 over the last fifth of the tokens (`shaping.py`)
    overlong_band=0.2,
    dynamic_sampling=True,  # groups whose rewards are all equal are replaced
    ratio_level="token",  # ρ = π / π_old (`ratios.py`)
    surrogate="clip",  # min(ρ A, clip(ρ, 0.8, 1.28) A) (`surrogates.py`, `clipped`)
    clip_low=0.2,
    clip_high=0.28,
    loss_aggregation="token_mean",  # the mean over all tokens of the update
    kl_coefficient=0.0,  # no KL
)
