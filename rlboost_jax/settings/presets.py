"""The algorithms that people cite, each as the choices of its paper.

Every preset is read from the one that it varies. What a paper leaves open is ours to choose
and said here. `docs/reference/algorithms.md` has the formulas, and the tests of each.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from rlboost_jax.settings.algorithm_config import AlgorithmConfig

# Shao et al. 2024, arXiv:2402.03300, section 4.1. The paper's β is 0.04; 0 here, as in most
# recipes since, keeps no reference model.
GRPO: Final = AlgorithmConfig(
    name="grpo",
    group_size=8,
    advantage="group_std",
    deviation="population",
    whiten=False,
    discount=1.0,
    gae_lambda=0.95,
    old_policy="behaviour",
    ratio_level="token",
    surrogate="clip",
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=0.0,
    sapo_temperature_positive=1.0,
    sapo_temperature_negative=1.05,
    loss_aggregation="sequence_mean",
    kl_coefficient=0.0,
    kl_estimator="k3",
    kl_placement="loss",
    kl_gradient="own",
    correction="none",
    correction_level="token",
    correction_low=0.5,
    correction_high=2.0,
    overlong_penalty=0.0,
    overlong_band=0.2,
    overlong_filter=False,
    dynamic_sampling=False,
    dynamic_sampling_factor=4.0,
    mini_batches=1,
    epochs=1,
    critic_learning_rate=1e-5,
    value_clip=0.2,
    routing_replay=True,  # Ma et al. 2025, arXiv:2510.11370; models/NOTES.md says why by default
)

# Liu et al. 2025, arXiv:2503.20783, section 3.2: neither the deviation nor the response's own
# length divides.
DR_GRPO: Final = replace(GRPO, name="dr_grpo", advantage="group_mean", loss_aggregation="constant")

# Yu et al. 2025, arXiv:2503.14476, section 3 and table 1: of 20,480 tokens the last 4,096 are
# punished, which is a fifth.
DAPO: Final = replace(
    GRPO,
    name="dapo",
    clip_high=0.28,
    loss_aggregation="token_mean",
    overlong_penalty=1.0,
    dynamic_sampling=True,
)

# Zheng et al. 2025, arXiv:2507.18071, section 5.1. The paper divides a batch into four
# mini-batches: set algorithm.mini_batches, for with one the ratio is 1.
GSPO: Final = replace(GRPO, name="gspo", ratio_level="sequence", clip_low=3e-4, clip_high=4e-4)

# Ahmadian et al. 2024, arXiv:2402.14740, equations 6 and 7: the KL is part of the reward, and
# a response counts as one action.
RLOO: Final = replace(
    GRPO,
    name="rloo",
    advantage="leave_one_out",
    surrogate="reinforce",
    loss_aggregation="sequence_sum",
    kl_coefficient=0.03,
    kl_estimator="k1",
    kl_placement="reward",
)

# Hu 2025, arXiv:2501.03262, section 3. The coefficients are ours.
REINFORCE_PP: Final = replace(
    GRPO,
    name="reinforce_pp",
    advantage="return",
    whiten=True,
    loss_aggregation="token_mean",
    kl_coefficient=0.01,
    kl_estimator="k1",
    kl_placement="reward",
)
REINFORCE_PP_BASELINE: Final = replace(
    GRPO,
    name="reinforce_pp_baseline",
    advantage="group_mean",
    whiten=True,
    loss_aggregation="token_mean",
    kl_coefficient=0.001,
    kl_estimator="k2",
)

# MiniMax 2025, arXiv:2506.13585, section 3.1: no lower bound. The upper one, a ratio of 5, is
# of Khatri et al. 2025, arXiv:2510.13786.
CISPO: Final = replace(
    GRPO,
    name="cispo",
    surrogate="cispo",
    clip_low=1.0,
    clip_high=4.0,
    loss_aggregation="token_mean",
)

# Gao et al. 2025, arXiv:2511.20347.
SAPO: Final = replace(GRPO, name="sapo", surrogate="sapo")

# Schulman et al. 2017, arXiv:1707.06347, with one response per prompt and an outcome reward.
PPO: Final = replace(
    GRPO, name="ppo", group_size=1, advantage="gae", whiten=True, loss_aggregation="token_mean"
)

PRESETS: Final[Mapping[str, AlgorithmConfig]] = {
    preset.name: preset
    for preset in (
        GRPO,
        DR_GRPO,
        DAPO,
        GSPO,
        RLOO,
        REINFORCE_PP,
        REINFORCE_PP_BASELINE,
        CISPO,
        SAPO,
        PPO,
    )
}


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill the `algorithm` section with the preset's choices.

    An unknown name is left to the checks of `ranges.py`, which suggest a known one.
    """
    preset = asdict(PRESETS.get(values.get("name", ""), GRPO))
    given = {key: value for key, value in values.items() if value is not None}
    return {**preset, **given}
