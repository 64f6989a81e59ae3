"""Timed calls take turns, and the first ones do not count."""

import pytest

from benchmarks import turns


@pytest.fixture
def clock(monkeypatch):
    """Moves when a call says so."""
    now = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize("uncounted", [1, 2])
def test_turns_alternate_and_the_first_rounds_are_not_counted(clock, uncounted):
    order = []

    def call(name):
        order.append(name)
        clock[0] += 2.0 ** len(order)

    calls = {name: lambda name=name: call(name) for name in "ab"}
    seconds = turns.take_turns(calls, 2, uncounted=uncounted)
    assert order == ["a", "b"] * (2 + uncounted)
    first = 2.0 ** (2 * uncounted + 1)
    assert seconds == {"a": [first, 4 * first], "b": [2 * first, 8 * first]}


def test_a_median_is_of_the_rounds_that_count(clock):
    durations = iter([9.0, 1.0, 5.0, 2.0])

    def call():
        clock[0] += next(durations)

    assert turns.median_seconds({"a": call}, 3) == {"a": 2.0}
