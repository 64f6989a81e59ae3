"""Names of the algorithms that people cite, for the choices that each one's module writes down."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from rlboost_jax.algorithms.cispo import CISPO
from rlboost_jax.algorithms.dapo import DAPO
from rlboost_jax.algorithms.dr_grpo import DR_GRPO
from rlboost_jax.algorithms.grpo import GRPO
from rlboost_jax.algorithms.gspo import GSPO
from rlboost_jax.algorithms.ppo import PPO
from rlboost_jax.algorithms.reinforce_pp import REINFORCE_PP
from rlboost_jax.algorithms.reinforce_pp_baseline import REINFORCE_PP_BASELINE
from rlboost_jax.algorithms.rloo import RLOO
from rlboost_jax.algorithms.sapo import SAPO
from rlboost_jax.settings.algorithm_config import AlgorithmConfig

_ALL: Final = (
    *(GRPO, DR_GRPO, DAPO, GSPO, RLOO, REINFORCE_PP, REINFORCE_PP_BASELINE, CISPO, SAPO, PPO),
)
PRESETS: Final[Mapping[str, AlgorithmConfig]] = {preset.name: preset for preset in _ALL}


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill the `algorithm` section with the preset's choices.

    An unknown name is left to the checks of `ranges.py`, which suggest a known one.
    """
    preset = asdict(PRESETS.get(values.get("name", ""), GRPO))
    given = {key: value for key, value in values.items() if value is not None}
    return {**preset, **given}
