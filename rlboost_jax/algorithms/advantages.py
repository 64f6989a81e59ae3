"""How much better a trajectory did than the others of its prompt."""

from typing import Final

import numpy as np
from jaxtyping import Float

STD_FLOOR: Final = 1e-4  # added to the deviation, in units of reward


def group_advantages(
    rewards: Float[np.ndarray, " G"], *, normalize_by_std: bool
) -> Float[np.ndarray, " G"]:
    """Rewards minus their mean, in units of their standard deviation if asked for.

    A group whose rewards are all equal teaches nothing: its advantages are exactly 0.

    Args:
        rewards: of the trajectories of one prompt.
        normalize_by_std: False keeps the rewards' own unit, so that prompts which are
            nearly always or nearly never solved do not weigh more than the others.

    Source: Shao et al. 2024, arXiv:2402.03300, section 4.1.2 (with the population
    deviation); without it, Liu et al. 2025, arXiv:2503.20783, section 3.2.
    """
    if (rewards == rewards[0]).all():
        return np.zeros_like(rewards)
    differences = rewards - rewards.mean()
    return differences / (rewards.std() + STD_FLOOR) if normalize_by_std else differences
