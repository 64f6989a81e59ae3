"""Tail merging: how many instances a step's tail is worth, once responses end one by one.

For every number of them that could finish the rest it is predicted when the learner is done and
what that costs: reserved devices until then, instances for as long as each has work, and starting
others in time for the next step. The cheapest is best; among equals, the smallest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlboost_jax.manager.policies.fleet_size import Prices
from rlboost_jax.manager.policies.forecast import Forecast


@dataclass(frozen=True, kw_only=True)
class Merge:
    kept: int  # of the instances that could be let go, those that hold most
    end: float  # seconds until the next step, then


def best_merge(
    predict: Callable[[int], Forecast | None],
    *,
    own: Sequence[int],
    other_slots: int,
    left: int,
    surplus: int,
    overhead: float,
    prices: Prices,
) -> Merge | None:
    """The cheapest number of instances to finish the tail; None if it cannot be predicted.

    Args:
        predict: the tail if so many are kept.
        own: slots of instances that could be let go, in the order in which they are kept.
        other_slots: of instances that stay in any case.
        left: responses that are not finished.
        surplus: instances above the number wanted: those do not come back.
        overhead: seconds of a step besides window, waits and training.
    """
    hourly = prices.reserved + prices.time
    found: dict[int, tuple[float, float]] = {}  # instances kept → dollars, seconds to go

    def rest(instances: int, idle: float, surplus: int) -> float:
        """Dollars saved by releasing `instances`; `surplus` of them are not needed again."""
        return min(surplus, instances) * idle * prices.instance + (
            max(0, instances - surplus) * prices.saved(idle)
        )

    for kept in range(len(own), -1, -1):
        if kept < len(own) and other_slots + sum(own[:kept]) < left:
            break
        predicted = predict(kept)
        if predicted is None:
            return None
        end = predicted.end + overhead
        gone = len(own) - kept
        saved = rest(gone, end, surplus)
        if gone and not saved:
            break
        saved += rest(kept, max(0.0, end - predicted.rollout), max(0, surplus - gone))
        found[kept] = end * (hourly + len(own) * prices.instance) - saved, end
        if kept + 1 in found and found[kept][0] > found[kept + 1][0]:
            break
    kept = min(found, key=lambda k: (found[k][0], k))
    return Merge(kept=kept, end=found[kept][1])
