"""How many preemptible instances are worth their price, and when to pause one for a while.

A step with n instances takes S(n) and costs D(n) dollars: reserved devices and instances for as
long as each is paid for, and what it costs to send these the weights. An hour is worth v dollars
to those who wait for the run, so each token costs (D(n) + v · S(n)) / tokens, and the n with the
least is wanted: with v = 0 the most tokens per dollar, with a large v the fastest step. S falls
ever more slowly, so there is one n with the least cost.

Of n instances that are paid for, some are starting, since others were lost: as a share of those
at work, loss rate times start-up time. S is that of the ones at work. The rate is learnt: with a
gamma prior of so many losses in so many instance-seconds, the posterior of a Poisson process's
rate after more of both is a gamma again, and its mean the ratio of the sums.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rlboost_jax.manager.policies.forecast import Forecast

PRIOR_LOSSES, PRIOR_SECONDS = 0.5, 3600.0  # a machine goes every two hours, so far as we know
WORTH = 0.002  # share of a token's price that a larger fleet must save
SPARED = 0.02  # share of a token's price that letting instances go must save
LOOK_AHEAD = 2  # sizes without a gain after which no further one is tried
SURELY = 1.5  # times what it costs to start anew: so much a rest must save


@dataclass(frozen=True)
class Hazard:
    """Losses of preemptible instances, and the seconds that all instances have lived."""

    losses: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Losses of one instance per second: the mean of the posterior."""
        return (PRIOR_LOSSES + self.losses) / (PRIOR_SECONDS + self.seconds)

    @property
    def deviation(self) -> float:
        """Standard deviation of the posterior."""
        return math.sqrt(PRIOR_LOSSES + self.losses) / (PRIOR_SECONDS + self.seconds)


class Rate(Protocol):
    """Loss rate of an instance."""

    @property
    def rate(self) -> float:
        """Losses per second."""
        ...


@dataclass(frozen=True)
class KnownRate:
    """Loss rate of a fleet of several pools, each of which has learnt its own."""

    rate: float


@dataclass(frozen=True, kw_only=True)
class Prices:
    reserved: float  # dollars per second, all reserved devices
    instance: float  # dollars per second
    pull: float = 0.0  # dollars, to send one instance the weights of a version
    time: float = 0.0  # dollars that a second sooner is worth besides
    start_seconds: float  # from an order to work; paid for
    hazard: Rate
    releases: bool = False  # instances may be let go where that saves money

    def at_work(self, instances: int) -> float:
        """Mean number of `instances` that are at work rather than starting."""
        return instances / (1.0 + self.hazard.rate * self.start_seconds)

    def saved(self, idle: float) -> float:
        """Dollars saved by releasing an instance for `idle` seconds and starting it again in time.

        0 if keeping it is cheaper.
        """
        if not self.releases:
            return 0.0
        anew = self.start_seconds * self.instance + self.pull
        worth = idle * self.instance
        return worth - anew if worth > SURELY * anew else 0.0

    def step(self, instances: int, seconds: float, idle: float) -> float:
        """Dollars of a step that ends with the instances idle for `idle` seconds."""
        pulls = 1.0 + self.hazard.rate * seconds
        each = seconds * self.instance + pulls * self.pull
        return seconds * self.reserved + instances * (each - self.saved(idle))


@dataclass(frozen=True, kw_only=True)
class Size:
    """Predicted outcome of a fleet of some size."""

    instances: int
    step_seconds: float
    window_seconds: float
    tokens: float  # trained in a step
    dollars: float  # of a step

    def price(self, time: float) -> float:
        """Dollars per token if a second of waiting is worth `time` dollars."""
        return (self.dollars + time * self.step_seconds) / self.tokens


def size_of(
    step: Callable[[int], tuple[Forecast, float]],
    instances: int,
    *,
    prices: Prices,
    overhead: float,
) -> Size:
    """Predict a fleet of `instances`, some of which are still starting.

    Args:
        step: a step with so many at work, and the tokens of its responses.
        overhead: seconds of a step besides window, waits and training.
    """
    forecast, tokens = step(instances)
    seconds, missing = forecast.end, instances - prices.at_work(instances)
    if instances and missing > 0:
        seconds += missing * max(0.0, step(instances - 1)[0].end - seconds)
    seconds += overhead
    return Size(
        instances=instances,
        step_seconds=seconds,
        window_seconds=forecast.window,
        tokens=tokens,
        dollars=prices.step(instances, seconds, max(0.0, seconds - forecast.rollout)),
    )


def kept_size(predict: Callable[[int], Size], *, time: float, wanted: int, here: int) -> int:
    """Number of the `here` instances worth keeping, in a fleet larger than the wanted size.

    A size that is hardly dearer is kept, because it may be wanted again after the next step.
    """
    most = (1.0 + SPARED) * predict(wanted).price(time)
    kept = wanted
    while kept < here and predict(kept + 1).price(time) <= most:
        kept += 1
    return kept


def best_size(predict: Callable[[int], Size], *, time: float, start: int, most: int) -> Size:
    """The smallest size whose cost per token is minimal or nearly so.

    Smaller and larger ones than `start` are tried for as long as tokens become cheaper.

    Args:
        time: dollars that a second is worth.
    """

    begin = min(start, most)
    tried = {begin: predict(begin)}
    for direction in (-1, 1):
        number, least, failures = begin + direction, tried[begin].price(time), 0
        while 0 <= number <= most and failures < LOOK_AHEAD:
            tried[number] = predict(number)
            failures = 0 if tried[number].price(time) < least else failures + 1
            least = min(least, tried[number].price(time))
            number += direction
    limit = (1.0 + WORTH) * min(size.price(time) for size in tried.values())
    cheap = (size for size in tried.values() if size.price(time) <= limit)
    return min(cheap, key=lambda size: size.instances)
