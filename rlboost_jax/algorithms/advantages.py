"""How much better a trajectory did than the others of its prompt, or of its batch."""

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from rlboost_jax.algorithms.outside_functions import advantages_from_outside
from rlboost_jax.settings.algorithm_config import Advantage, ComparingAdvantage, Deviation
from rlboost_jax.settings.outside import Outside

STD_FLOOR: Final = 1e-4  # added to the deviation, in units of reward
VARIANCE_FLOOR: Final = 1e-8  # added to the variance of a batch
EQUAL_SHARE: Final = 1e-9  # of the largest reward: closer ones differ by rounding alone
EQUAL_REWARDS: Final = 1e-12  # the same in units of reward, for sums that cancel out
_DEGREES_LOST: Final[Mapping[Deviation, int]] = {"population": 0, "sample": 1}


def differ(rewards: ArrayLike) -> bool:
    """Whether rewards are unequal by more than the rounding of sums: 0.1 + 0.2 equals 0.3.

    One reward alone, or none, differs from nothing; what is not a number differs from everything.
    """
    values = np.asarray(rewards, np.float64)
    if values.size < 2:
        return False
    least, most = float(values.min()), float(values.max())
    return not most - least <= max(EQUAL_REWARDS, EQUAL_SHARE * max(abs(least), abs(most)))


def comparable(rewards: ArrayLike, advantage: Advantage) -> bool:
    """Whether the responses of a group with these rewards differ to the advantage: by "pass_at_k"
    only where one is better than all others."""
    if advantage == "pass_at_k":
        rewards = np.sort(np.asarray(rewards, np.float64))[-2:]
    return differ(rewards)


def group_advantages(
    rewards: Float[np.ndarray, " G"],
    *,
    advantage: ComparingAdvantage,
    deviation: Deviation = "population",
    raw: Float[np.ndarray, " G"] | None = None,
) -> Float[np.ndarray, " G"]:
    """Advantages of the responses to one prompt.

    A group whose rewards are all equal (`differ`) teaches nothing: its advantages are exactly 0.
    So does one of a single trajectory, or of none, and one whose rewards differ by shaping alone.

    Args:
        rewards: of the trajectories of one prompt that are compared.
        raw: the same without what shapes them; None: nothing does.
        advantage: "group_std", rewards minus their mean in units of their deviation;
            "group_mean", rewards minus their mean, in the rewards' own unit, so that prompts
            which are nearly always or nearly never solved do not weigh more than the others;
            "leave_one_out", each reward minus the mean of the others;
            "pass_at_k", the group's best reward minus the best of the others: what the response
            adds to the best of k = G, so 0 for all but the best one;
            or a function of another package.
        deviation: "population" divides the squares by G, "sample" by G - 1.

    Source: Shao et al. 2024, arXiv:2402.03300, section 4.1.2; Liu et al. 2025,
    arXiv:2503.20783, section 3.2; Ahmadian et al. 2024, arXiv:2402.14740, section 3;
    Tang et al. 2025, arXiv:2503.19595, the leave-one-out estimate for pass@k.
    """
    if not all(comparable(each, advantage) for each in (rewards, raw) if each is not None):
        return np.zeros_like(rewards)
    differences = rewards - rewards.mean()
    match advantage:
        case "group_std":
            return differences / (rewards.std(ddof=_DEGREES_LOST[deviation]) + STD_FLOOR)
        case "group_mean":
            return differences
        case "leave_one_out":
            return differences * (len(rewards) / (len(rewards) - 1))
        case "pass_at_k":
            second, best = np.sort(rewards)[-2:]
            return np.where(rewards == best, best - second, 0.0)
        case Outside():
            return advantages_from_outside(advantage, rewards, rewards if raw is None else raw)
        case _:
            assert_never(advantage)


def turn_advantages(
    returns: Sequence[Float[np.ndarray, " _"]],
    *,
    advantage: ComparingAdvantage,
    deviation: Deviation = "population",
    raw: Sequence[Float[np.ndarray, " _"]] | None = None,
) -> list[Float[np.ndarray, " _"]]:
    """Advantages of the turns of the episodes of one prompt.

    Turn k of an episode is compared with turn k of the others that have one: what came before is
    as much as nothing to it, but for how far it got. A turn that one episode alone has is a group
    of one, and gets 0.

    Args:
        returns: of each episode, by turn: its rewards from that turn on.
        advantage, deviation: see `group_advantages`.
        raw: the same without what shapes rewards; None: nothing does.

    Source: Feng et al. 2025, arXiv:2505.10978, section 4.2: step-level relative advantages, with
    the number of the turn in place of the state that groups share.
    """
    found = [np.zeros(len(each)) for each in returns]
    for turn in range(max(map(len, returns), default=0)):
        there = [place for place, each in enumerate(returns) if len(each) > turn]
        compared, plain = (
            None if of_turns is None else np.array([of_turns[place][turn] for place in there])
            for of_turns in (returns, raw)
        )
        assert compared is not None
        advantages = group_advantages(compared, advantage=advantage, deviation=deviation, raw=plain)
        for place, value in zip(there, advantages, strict=True):
            found[place][turn] = value
    return found


def whitened(
    advantages: Sequence[Float[np.ndarray, " _"]],
) -> list[Float[np.ndarray, " _"]]:
    """Advantages of a batch, shifted and scaled to mean 0 and deviation 1 over all its tokens.

    It needs the whole batch: neither the mean nor the deviation of a part will do. Advantages
    that are all equal become exactly 0.

    Args:
        advantages: of each trajectory, by token, in (prompt, sample) order: float sums have one.

    Source: Hu 2025, arXiv:2501.03262, section 3, with the population variance.
    """
    everything = np.concatenate(advantages).astype(np.float64)
    if not differ(everything):
        return [np.zeros_like(part) for part in advantages]
    mean, scale = everything.mean(), np.sqrt(everything.var() + VARIANCE_FLOOR)
    return [(part - mean) / scale for part in advantages]
