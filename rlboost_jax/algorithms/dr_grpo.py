"""Dr. GRPO: GRPO without its two divisors, the group's deviation and the response's own length.

Source: Liu et al. 2025, arXiv:2503.20783, section 3.2.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.algorithms.grpo import GRPO

DR_GRPO: Final = replace(
    GRPO,
    name="dr_grpo",
    advantage="group_mean",  # A = r - mean of the group (`advantages.py`)
    ratio_level="token",  # ρ = π / π_old (`ratios.py`)
    surrogate="clip",  # min(ρ A, clip(ρ, 0.8, 1.2) A) (`surrogates.py`, `clipped`)
    loss_aggregation="constant",  # the sum over tokens / (responses * most tokens of a response)
    kl_coefficient=0.0,  # no KL
)
