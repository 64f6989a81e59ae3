"""The fluid bound: the shortest step that rates alone allow, were work a liquid.

Reserved devices either generate (at `reserved_rate`) or train, not both; every preemptible
instance generates at `instance_rate` all the time. A step ends when all tokens are generated
and trained. The best split lets the reserved devices seed for t seconds and then train:

    T(t) = max(t + c, (W - reserved_rate · t) / (n · instance_rate))

W tokens, c seconds of training, n instances. T is least where the two are equal, or at
t = 0 when the instances alone are done before the training is.
"""

import math
from collections.abc import Sequence


def step_bound(
    *,
    tokens: float,
    train_seconds: float,
    reserved_rate: float,
    instance_rate: float,
    start: float,
    changes: Sequence[tuple[float, int]],
) -> tuple[float, float]:
    """(shortest step, its seeding window), both in seconds, of one who knows the future.

    Args:
        tokens: to generate in the step.
        train_seconds: learner time for all of them.
        reserved_rate: tokens per second of the reserved devices while seeding.
        instance_rate: tokens per second of one preemptible instance.
        start: when the step begins, seconds.
        changes: (time, instances from then on), in time order. Before the first there are
            none; after the last nothing changes any more.

    The window is the least for which the tokens are done by its end plus `train_seconds`;
    as both sides grow with it, it is found by bisection.
    """

    def generated(window: float) -> float:
        seconds = _instance_seconds(changes, start, start + window + train_seconds)
        return seconds * instance_rate + window * reserved_rate

    low, high = 0.0, tokens / reserved_rate
    if generated(low) >= tokens:
        return train_seconds, 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if generated(middle) >= tokens else (middle, high)
    return high + train_seconds, high


def _instance_seconds(changes: Sequence[tuple[float, int]], start: float, end: float) -> float:
    """Integral of the number of instances from `start` to `end`."""
    untils = [*(since for since, _ in changes[1:]), math.inf]
    return sum(
        count * max(0.0, min(until, end) - max(since, start))
        for (since, count), until in zip(changes, untils, strict=True)
    )
