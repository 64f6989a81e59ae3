"""Advantages token by token: discounted returns, and generalised estimates with a critic.

On the host in float64, from the last token to the first. All are tokens that the policy sampled:
what it was given in between (a tool's answer, say) is passed over, as if the next sampled token
came right after the one before.
"""

import numpy as np
from jaxtyping import Float


def rewards_to_go(rewards: Float[np.ndarray, " T"], *, discount: float) -> Float[np.ndarray, " T"]:
    """R_t = r_t + discount × R_{t+1}.

    Source: Hu 2025, arXiv:2501.03262, section 3.
    """
    returns = np.zeros(len(rewards))
    following = 0.0
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discount * following
        returns[t] = following
    return returns


def generalized_advantages(
    rewards: Float[np.ndarray, " T"],
    values: Float[np.ndarray, " T"],
    *,
    discount: float,
    gae_lambda: float,
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
    """Advantages A_t and returns A_t + V_t of one response.

    δ_t = r_t + discount × V_{t+1} - V_t and A_t = δ_t + discount × gae_lambda × A_{t+1}. After the
    last token nothing is worth anything, a response that was cut off included.

    Args:
        rewards: of each token, mostly of the last one.
        values: V_t, what the critic expected before token t was sampled.

    Source: Schulman et al. 2015, arXiv:1506.02438, equation 16.
    """
    advantages, returns = np.zeros(len(rewards)), np.zeros(len(rewards))
    next_value = next_advantage = 0.0
    for t in reversed(range(len(rewards))):
        surprise = rewards[t] + discount * next_value - values[t]
        next_advantage = surprise + discount * gae_lambda * next_advantage
        next_value = values[t]
        advantages[t], returns[t] = next_advantage, next_advantage + next_value
    return advantages, returns
