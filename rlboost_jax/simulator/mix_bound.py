"""What no policy can beat with a mix of machines: `bound.py`'s relaxations, with several kinds.

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

What instances cost follows where all that are on loan are paid for: they are on loan for at least
as long as in the stretch with the fewest, of those that are as long as the shortest run. A run that
goes on for longer than the market was looked at pays for the learner until then.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.simulator.lengths import response_lengths
from rlboost_jax.simulator.mix_markets import changes
from rlboost_jax.simulator.mix_run import Horizon
from rlboost_jax.simulator.mixes import Mix
from rlboost_jax.simulator.purchase import Purchase
from rlboost_jax.simulator.rates import EngineRates, train_seconds

HALVINGS: Final = 24
DIRECTIONS: Final = 33  # of (u, v) that are known
BEST: Final = 2  # of them that are tried
LOOKED_AT: Final = 4.0  # times the shortest run: of a market
SAFE: Final = 1 - 1e-9  # sums are rounded
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Least:
    """Of a run with one seed, at least."""

    seconds: float
    dollars: float


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Of one step with one learner; groups in the order in which they can be complete."""

    worths: Floats  # [directions, groups]: of the first groups together, at least
    shortest: Floats  # seconds of a group without company
    remaining: Floats  # seconds of training that are left when a group is complete, at least
    learner: float  # seconds that the learner works
    begin: float
    after: float  # training, of which nobody is waited for


class Bounds:
    """Of all mixes of a purchase."""

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
        self._loans = lru_cache(maxsize=None)(self._loan)
        policy = purchase.learners[0].policy
        self._pays_all = policy.sizing == "fixed" and not (
            policy.merge_tail or policy.max_dollars or policy.max_dollars_per_hour
        )

    def least(self, mix: Mix, seed: int) -> Least:
        """Of a run with that mix."""
        config = self._purchase.learners[mix.reserved]
        earned = np.array(mix.counts, np.float64) @ self._earned[: self._num_kinds]
        steps = range(self._horizon.steps)
        each = [self._seconds(earned, mix.reserved, seed, step) for step in steps]
        weights, settling = self._horizon.weights, self._horizon.settling
        seconds = math.fsum(w * s for w, s in zip(weights, each, strict=True))
        looked_at = LOOKED_AT * 2 ** math.ceil(math.log2(sum(each)))
        parts = ((sum(each[:settling]), 1.0), (sum(each[settling:]), weights[-1]))
        paid = 0.0
        if self._pays_all:
            paid = sum(w * self._instances(mix, seed, s, looked_at) for s, w in parts if s)
        hourly = config.reserved.nodes * config.reserved.price_per_node_hour
        dollars = min(seconds / 3600 * hourly + paid, looked_at / 3600 * hourly)
        return Least(seconds=SAFE * seconds, dollars=SAFE * dollars)

    def _instances(self, mix: Mix, seed: int, seconds: float, looked_at: float) -> float:
        """Dollars for those on loan in any stretch of so many seconds, at least."""
        dollars = 0.0
        types = self._purchase.prices.instances
        for number, (kind, count) in enumerate(zip(types, mix.counts, strict=True)):
            held = count * seconds
            if count and (kind.trace or (kind.losses_per_hour and kind.away_seconds)):
                held = _fewest(*self._loans(number, count, seed, looked_at), seconds)
            dollars += held / 3600 * kind.price_per_hour
        return dollars

    def _loan(self, number: int, count: int, seed: int, seconds: float) -> tuple[Floats, Floats]:
        """Of one type: moments, and instance-seconds on loan until then."""
        types = self._purchase.prices.instances
        counts = [count if kind == number else 0 for kind in range(len(types))]
        at, held, there = [0.0], [0.0], 0
        for change in changes(types, counts, seed=seed, seconds=seconds):
            held.append(held[-1] + there * (change.seconds - at[-1]))
            at.append(change.seconds)
            there += 1 if change.added else -1
        at.append(seconds)
        held.append(held[-1] + there * (seconds - at[-2]))
        return np.array(at), np.array(held)

    def _seconds(self, earned: Floats, shape: int, seed: int, step: int) -> float:
        """Of one step."""
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
            shortest=np.sort(np.minimum.reduce(alone)),
            remaining=np.cumsum(np.sort(trained))[::-1],
            learner=trainer.begin_seconds + float(trained.sum()) + after + trainer.switch_seconds,
            begin=trainer.begin_seconds,
            after=after,
        )


def _earned(rates: EngineRates, longest: float, token: Floats, read: Floats) -> Floats:
    """What an engine earns in a second, at most, at each price of tokens and of tokens read."""
    fixed, slope = rates.step_line
    slots, room = float(rates.slots), max(float(rates.kv_tokens), longest)
    with_both = (token * slots + read * room) / (fixed + slope * room)
    return np.asarray(np.maximum(token * slots / fixed, with_both), np.float64)


def _fewest(at: Floats, held: Floats, seconds: float) -> float:
    """Of a sum that grows along `at`: the least that it grows by in a stretch of so long."""
    last = at[-1] - seconds
    if last <= 0:
        return 0.0
    begins = np.clip(np.concatenate([at, at - seconds]), 0.0, last)
    grown = np.interp(begins + seconds, at, held) - np.interp(begins, at, held)
    return max(0.0, float(np.min(grown)))
