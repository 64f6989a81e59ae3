"""GRPO: a response is compared with the other responses to its prompt, and no critic is needed.

Source: Shao et al. 2024, arXiv:2402.03300, section 4.1. The paper's β is 0.04; 0 here, as in most
recipes since, keeps no reference model. The other algorithms are read from this one: what they
leave out is as it stands here.
"""

from typing import Final

from rlboost_jax.settings.algorithm_config import AlgorithmConfig

GRPO: Final = AlgorithmConfig(
    name="grpo",
    group_size=8,
    # Advantage: A = (r - mean) / (deviation + 1e-4) over the group (`advantages.py`).
    advantage="group_std",
    deviation="population",
    whiten=False,
    discount=1.0,
    gae_lambda=0.95,
    # Ratio: ρ = π / π_old of each token (`ratios.py`).
    old_policy="behaviour",
    ratio_level="token",
    # Surrogate: min(ρ A, clip(ρ, 0.8, 1.2) A) (`surrogates.py`, `clipped`).
    surrogate="clip",
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=0.0,
    sapo_temperature_positive=1.0,
    sapo_temperature_negative=1.05,
    # Aggregation: the mean over responses of the mean over a response's tokens.
    loss_aggregation="sequence_mean",
    # KL to the starting model: none; with a coefficient, k3 in the loss, equation 4 (`kl.py`).
    kl_coefficient=0.0,
    kl_estimator="k3",
    kl_placement="loss",
    kl_gradient="own",
    # Correction of what engine and learner disagree about: none (`corrections.py`).
    correction="none",
    correction_level="token",
    correction_low=0.5,
    correction_high=2.0,
    # Which responses and groups are trained on, and how often.
    overlong_penalty=0.0,
    overlong_band=0.2,
    overlong_filter=False,
    dynamic_sampling=False,
    dynamic_sampling_factor=4.0,
    mini_batches=1,
    epochs=1,
    # The critic of "gae".
    critic_learning_rate=1e-5,
    value_clip=0.2,
    routing_replay=True,  # Ma et al. 2025, arXiv:2510.11370; models/NOTES.md says why by default
)
