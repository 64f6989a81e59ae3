"""Timed calls take turns, and the first ones do not count."""

import pytest

from benchmarks import turns


class Clock:
    """Moves when a call says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.mark.parametrize("uncounted", [1, 2])
def test_turns_alternate_and_the_first_rounds_are_not_counted(clock, uncounted):
    order = []

    def call(name):
        order.append(name)
        clock.now += 2.0 ** len(order)

    calls = {name: lambda name=name: call(name) for name in "ab"}
    seconds = turns.take_turns(calls, 2, uncounted=uncounted, clock=clock)
    assert order == ["a", "b"] * (2 + uncounted)
    first = 2.0 ** (2 * uncounted + 1)
    assert seconds == {"a": [first, 4 * first], "b": [2 * first, 8 * first]}


def test_a_median_is_of_the_rounds_that_count(clock):
    durations = iter([9.0, 1.0, 5.0, 2.0])

    def call():
        clock.now += next(durations)

    assert turns.median_seconds({"a": call}, 3, clock=clock) == {"a": 2.0}
