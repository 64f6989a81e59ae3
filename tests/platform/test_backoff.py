"""Pauses between attempts."""

import math

from rlboost_jax.platform.backoff import backoff_seconds


def test_doubles_up_to_the_longest():
    pauses = [backoff_seconds(attempt, first=0.5, longest=5.0) for attempt in range(6)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_without_a_longest_it_stays_finite():
    assert backoff_seconds(3, first=0.25) == 2.0
    assert math.isfinite(backoff_seconds(10**6, first=0.25))
