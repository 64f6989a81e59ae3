"""PPO with a critic: one response per prompt, and generalised advantages of its tokens.

Source: Schulman et al. 2017, arXiv:1707.06347, equation 7, with an outcome reward; advantages from
Schulman et al. 2015, arXiv:1506.02438, equation 16.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.algorithms.grpo import GRPO

PPO: Final = replace(
    GRPO,
    name="ppo",
    group_size=1,
    advantage="gae",  # A_t = δ_t + γλ A_t+1, δ_t = r_t + γ V_t+1 - V_t, γ = 1 (`returns.py`)
    gae_lambda=0.95,
    whiten=True,  # then mean 0 and deviation 1 over all tokens of the batch (`advantages.py`)
    ratio_level="token",  # ρ = π / π_old (`ratios.py`)
    surrogate="clip",  # min(ρ A, clip(ρ, 0.8, 1.2) A) (`surrogates.py`, `clipped`)
    loss_aggregation="token_mean",  # the mean over all tokens of the update
    kl_coefficient=0.0,  # no KL
    value_clip=0.2,  # the critic's loss (`values.py`)
    critic_learning_rate=1e-5,
)
