"""REINFORCE++: returns of tokens, whitened over the batch, under PPO's clip.

Source: Hu 2025, arXiv:2501.03262, section 3. The KL's coefficients are ours.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.algorithms.grpo import GRPO

REINFORCE_PP: Final = replace(
    GRPO,
    name="reinforce_pp",
    advantage="return",  # A_t = sum of γ^(k-t) r_k from t on, with γ = 1 (`returns.py`)
    whiten=True,  # then mean 0 and deviation 1 over all tokens of the batch (`advantages.py`)
    ratio_level="token",  # ρ = π / π_old (`ratios.py`)
    surrogate="clip",  # min(ρ A, clip(ρ, 0.8, 1.2) A) (`surrogates.py`, `clipped`)
    loss_aggregation="token_mean",  # the mean over all tokens of the update
    kl_coefficient=0.01,  # r_t is less by β k1 of token t (`kl.py`, `kl_rewards`)
    kl_estimator="k1",
    kl_placement="reward",
)
