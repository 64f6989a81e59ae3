"""SAPO: GRPO with a soft gate in place of the clip.

Source: Gao et al. 2025, arXiv:2511.20347, equation 6.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.algorithms.grpo import GRPO

SAPO: Final = replace(
    GRPO,
    name="sapo",
    advantage="group_std",  # A = (r - mean) / (deviation + 1e-4) of the group (`advantages.py`)
    ratio_level="token",  # ρ = π / π_old (`ratios.py`)
    surrogate="sapo",  # (4 / τ) sigmoid(τ (ρ - 1)) A (`surrogates.py`)
    sapo_temperature_positive=1.0,  # τ where A > 0
    sapo_temperature_negative=1.05,  # τ elsewhere
    loss_aggregation="sequence_mean",  # the mean over responses of the mean over their tokens
    kl_coefficient=0.0,  # no KL
)
