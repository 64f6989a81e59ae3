"""REINFORCE++ with a baseline: the group's mean first, then whitening over the batch.

Source: Hu 2025, arXiv:2501.03262, section 3. The KL's coefficient is ours.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.algorithms.grpo import GRPO

REINFORCE_PP_BASELINE: Final = replace(
    GRPO,
    name="reinforce_pp_baseline",
    advantage="group_mean",  # A = r - mean of the group (`advantages.py`)
    whiten=True,  # then mean 0 and deviation 1 over all tokens of the batch
    ratio_level="token",  # ρ = π / π_old (`ratios.py`)
    surrogate="clip",  # min(ρ A, clip(ρ, 0.8, 1.2) A) (`surrogates.py`, `clipped`)
    loss_aggregation="token_mean",  # the mean over all tokens of the update
    kl_coefficient=0.001,  # the loss is more by β k2 of each token (`kl.py`, `kl_losses`)
    kl_estimator="k2",
    kl_placement="loss",
)
