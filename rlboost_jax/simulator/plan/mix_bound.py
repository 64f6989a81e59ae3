"""What no policy can beat with a mix of machines: `mix_bound.py`'s relaxations, with several kinds.

An engine of kind k takes at least max(f L / slots, f Q / room) + b Q seconds for L tokens that read
Q of context (f, b: seconds of a decode step, and of a token it reads). Let a token be worth u and a
token read v. In a second such an engine earns c_k(u, v) at most, by full slots, or by slots and
cache both full. So engines that have earned less than the worth of some responses have not done
them: whatever u and v, Σ n_k c_k · t is no less. By linear programming's duality the best u and v
give the time of the best division of work; some directions are tried.

Of a step, then: the i-th group to be complete is so no sooner than engines can have earned the
least worth of any i groups, nor before the i-th shortest of the groups, alone in the fastest
engine, has ended; and what remains has to be trained. Reserved engines generate while the learner
does not work. With a lag steps overlap, and only the learner's own time is left of it.

Instances of types that are never lost are paid for from the first moment to the last, where the
manager takes all that there are. Of the others, which it may leave alone for a while, nothing is
known but what they have to do: what the reserved engines and those that are always there cannot
have earned, at the least price for which one of them earns it. Both together fall and rise again as
a step takes longer, so their least is at the shortest step or where the two have earned it all.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.simulator.plan.mix_run import Horizon
from rlboost_jax.simulator.plan.mixes import Mix
from rlboost_jax.simulator.plan.purchase import Purchase
from rlboost_jax.simulator.rates import EngineRates, train_seconds
from rlboost_jax.simulator.response_lengths import response_lengths

HALVINGS: Final = 24
DIRECTIONS: Final = 33  # of (u, v) that are known
BEST: Final = 2  # of them that are tried
SAFE: Final = 1 - 1e-9  # sums are rounded
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Least:
    """Lower bounds on the seconds and dollars of a run with one seed."""

    seconds: float
    dollars: float


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Terms of the bounds on one step with one learner, groups in order of earliest completion."""

    worths: Floats  # [directions, groups]: of the first groups together, at least
    shortest: Floats  # seconds of a group without company
    remaining: Floats  # seconds of training that are left when a group is complete, at least
    learner: float  # seconds that the learner works
    begin: float
    after: float  # training that waits for nobody


class Bounds:
    """Lower bounds on runs with the mixes of a purchase."""

    def __init__(self, purchase: Purchase, horizon: Horizon) -> None:
        self._purchase, self._horizon = purchase, horizon
        every = [kind.rates for kind in purchase.kinds]
        self._num_kinds = len(every)
        every += [EngineRates(config, reserved=True) for config in purchase.learners]
        longest = float(purchase.learners[0].workload.slot_tokens)
        mean = longest / 2
        angles = np.linspace(0, 1, DIRECTIONS)
        self._worth = np.stack([1 - angles, angles / mean])  # of a token, and of a token read
        self._earned = np.stack([_earned(rates, longest, *self._worth) for rates in every])
        self._lines = [rates.step_line for rates in every]
        self._steps = lru_cache(maxsize=None)(self._step)
        self._prices = np.array([each.price_per_hour for each in purchase.prices.instances])
        policy = purchase.learners[0].policy
        self._pays_all = policy.sizing == "fixed" and not (
            policy.merge_tail or policy.max_dollars or policy.max_dollars_per_hour
        )

    def least(self, mix: Mix, seed: int) -> Least:
        """Bound a run with a mix from below."""
        earned = np.array(mix.counts, np.float64) @ self._earned[: self._num_kinds]
        steps = range(self._horizon.steps)
        seconds = dollars = 0.0
        for weight, step in zip(self._horizon.weights, steps, strict=True):
            shortest = self._seconds(earned, mix.reserved, seed, step)
            seconds += weight * shortest
            dollars += weight * self._dollars(mix, earned, seed, step, shortest)
        return Least(seconds=SAFE * seconds, dollars=SAFE * dollars)

    def _dollars(self, mix: Mix, earned: Floats, seed: int, step: int, shortest: float) -> float:
        """Bound the dollars of a step that takes at least `shortest` seconds from below."""
        config, each = self._purchase.learners[mix.reserved], self._steps(mix.reserved, seed, step)
        types = self._purchase.prices.instances
        counts = np.array(mix.counts, np.float64)
        staying = counts * [self._pays_all and not (t.trace or t.losses_per_hour) for t in types]
        hourly = config.reserved.nodes * config.reserved.price_per_node_hour
        hourly += float(staying @ self._prices)
        least = shortest / 3600 * hourly
        others = np.flatnonzero(counts - staying)
        if config.trainer.lag or not len(others):
            return least
        rows = self._earned[: self._num_kinds]
        price = np.min(self._prices[others, None] / rows[others], axis=0)
        steady = config.num_engines * self._earned[self._num_kinds + mix.reserved]
        whole = each.worths[:, -1] + steady * each.learner
        steady = steady + staying @ rows
        found = least
        for way in np.argsort(-each.worths[:, -1] / (steady + earned))[:BEST]:
            ends = (shortest, max(shortest, float(whole[way] / steady[way])))
            missing = (max(0.0, float(whole[way] - steady[way] * end)) for end in ends)
            sums = (
                end / 3600 * hourly + lack / 3600 * float(price[way])
                for end, lack in zip(ends, missing, strict=True)
            )
            found = max(found, min(sums))
        return found

    def _seconds(self, earned: Floats, shape: int, seed: int, step: int) -> float:
        """Bound the seconds of one step from below."""
        config, each = self._purchase.learners[shape], self._steps(shape, seed, step)
        if config.trainer.lag:
            return each.learner
        own = config.num_engines * self._earned[self._num_kinds + shape]
        best = np.argsort(-each.worths[:, -1] / (own + earned))[:BEST]
        worths, reserved, others = each.worths[best], own[best, None], earned[best, None]

        def end(seconds: float) -> float:
            later = worths - reserved * max(0.0, seconds - each.learner)
            with np.errstate(divide="ignore", invalid="ignore"):
                alone = np.where(later > 0, later / others, 0.0)
            worked = np.maximum(worths / (reserved + others), alone)
            ends = np.maximum(each.shortest, worked) + each.remaining
            return each.begin + float(np.max(ends)) + each.after

        low = each.learner
        high = low + float(np.max(worths[:, -1:] / reserved)) + float(each.shortest[-1])
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if end(middle) <= middle else (middle, high)
        return low

    def _step(self, shape: int, seed: int, step: int) -> _Step:
        config = self._purchase.learners[shape]
        work, trainer = config.workload, config.trainer
        lengths = response_lengths(work, seed=seed, step=step)
        tokens = lengths.astype(np.float64).reshape(-1, work.group_size)
        reads = tokens * work.prompt_tokens + tokens * (tokens - 1) / 2
        sums = tokens.sum(axis=1), reads.sum(axis=1)
        worths = self._worth[0][:, None] * sums[0] + self._worth[1][:, None] * sums[1]
        alone = [(fixed * tokens + slope * reads).max(axis=1) for fixed, slope in self._lines]
        groups = [[work.prompt_tokens + int(t) for t in group] for group in tokens]
        trained = np.array([train_seconds(config, group) for group in groups])
        trained += trainer.micro_batch_seconds / trainer.micro_batch_prompts
        after = trainer.apply_seconds + config.weight_bytes / config.links.host_bytes_per_second
        return _Step(
            worths=np.cumsum(np.sort(worths, axis=1), axis=1),
            shortest=np.sort(np.min(alone, axis=0)),
            remaining=np.cumsum(np.sort(trained))[::-1],
            learner=trainer.begin_seconds + float(trained.sum()) + after + trainer.switch_seconds,
            begin=trainer.begin_seconds,
            after=after,
        )


def _earned(rates: EngineRates, longest: float, token: Floats, read: Floats) -> Floats:
    """Most that an engine earns in a second, for each pair of prices of tokens made and read."""
    fixed, slope = rates.step_line
    slots, room = float(rates.slots), max(float(rates.kv_tokens), longest)
    with_both = (token * slots + read * room) / (fixed + slope * room)
    return np.asarray(np.maximum(token * slots / fixed, with_both), np.float64)
