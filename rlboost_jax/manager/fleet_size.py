"""How many preemptible instances are worth their money.

A step with n instances costs S(n) · (R + n · p) dollars, where S(n) is how long it takes with
its best window, R and p are dollars per second. Tokens per dollar rise with n for as long as
one more instance costs less for each token that it adds than all tokens cost on average, which
is where they are highest: S falls ever more slowly, so there is one such n.

An instance that is lost is paid for while its successor starts: p grows by the share of time
spent starting, loss rate times start-up time. The rate is learnt: with a gamma prior of so many
losses in so many instance-seconds, the posterior of a Poisson process's rate after more of both
is a gamma again, and its mean the ratio of the sums.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

PRIOR_LOSSES, PRIOR_SECONDS = 0.5, 3600.0  # a machine goes every two hours, so far as we know
FORGONE = 0.03  # share of the tokens per dollar that time is worth
WORTH = 0.002  # share of a step that one more instance must save
LOOK_AHEAD = 2  # sizes without a gain after which no larger one is tried


@dataclass(frozen=True)
class Hazard:
    """Losses of preemptible instances, and how long instances have lived in all."""

    losses: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Of one instance, per second: the posterior's mean."""
        return (PRIOR_LOSSES + self.losses) / (PRIOR_SECONDS + self.seconds)

    @property
    def deviation(self) -> float:
        """The posterior's standard deviation."""
        return math.sqrt(PRIOR_LOSSES + self.losses) / (PRIOR_SECONDS + self.seconds)


@dataclass(frozen=True, kw_only=True)
class Prices:
    reserved: float  # dollars per second, all reserved devices
    instance: float  # dollars per second
    start_seconds: float  # from an order to work; paid for
    hazard: Hazard

    @property
    def starting(self) -> float:
        """Seconds paid for while starting, for each second at work."""
        return self.hazard.rate * self.start_seconds

    def per_second(self, instances: int) -> float:
        """Of a run that has so many instances at work."""
        return self.reserved + instances * self.instance * (1.0 + self.starting)


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a fleet of some size would bring."""

    instances: int
    step_seconds: float
    window_seconds: float
    tokens: float  # trained in a step
    dollars: float  # of a step

    @property
    def tokens_per_dollar(self) -> float:
        return self.tokens / self.dollars if self.dollars else math.inf


def best_size(foresee: Callable[[int], Size], *, start: int, most: int) -> Size:
    """The fastest of the sizes that bring as good as the most tokens per dollar.

    Smaller ones than `start` are tried for as long as they bring more of these; larger ones for
    as long as they are good and save time.
    """
    begin = min(start, most)
    tried = {begin: foresee(begin)}

    def good(size: Size) -> bool:
        highest = max(other.tokens_per_dollar for other in tried.values())
        return size.tokens_per_dollar >= (1.0 - FORGONE) * highest

    def walk(step: int, gains: Callable[[Size, Size], bool]) -> None:
        number, failures = begin + step, 0
        while 0 <= number <= most and failures < LOOK_AHEAD:
            tried[number] = foresee(number)
            failures = 0 if gains(tried[number], tried[number - step]) else failures + 1
            number += step

    walk(-1, lambda size, larger: size.tokens_per_dollar > larger.tokens_per_dollar)
    walk(+1, lambda size, smaller: good(size) and _saves(size, smaller))
    return min(
        (size for size in tried.values() if good(size)),
        key=lambda size: (size.step_seconds, size.instances),
    )


def _saves(size: Size, smaller: Size) -> bool:
    return size.step_seconds <= (1.0 - WORTH) * smaller.step_seconds
