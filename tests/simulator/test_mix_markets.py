"""Markets of several types: rates, fates that are the same in every mix, traces round and round."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax.settings.traces import TraceRow
from rlboost_jax.simulator.market.kinds import kind_name
from rlboost_jax.simulator.plan.mix_market import changes, replayed
from rlboost_jax.simulator.plan.price_list import InstanceType

LOSSY = InstanceType(name="lossy", price_per_hour=1.0, losses_per_hour=2.0, away_seconds=900.0)
CALM = InstanceType(name="calm", price_per_hour=1.0)
DAY = 86_400.0


def held(market, moment):
    there = set()
    for change in market:
        if change.seconds <= moment:
            (there.add if change.added else there.remove)(change.machine)
    return there


def test_losses_and_times_away_are_those_asked_for():
    market = changes((LOSSY, CALM), (40, 2), seed=1, seconds=10 * DAY)
    lost = [each for each in market if not each.added]
    assert {kind_name(each.machine) for each in lost} == {"lossy"}
    hours = sum(
        (end - begin) / 3600 * sum(kind_name(m) == "lossy" for m in there)
        for begin, end, there in stretches(market, 10 * DAY)
    )
    assert len(lost) / hours == pytest.approx(2.0, rel=0.03)
    # On loan for half an hour, away for a quarter of one.
    assert hours / (40 * 240) == pytest.approx(2 / 3, rel=0.02)


def stretches(market, end):
    there, begin = set(), 0.0
    for change in market:
        yield begin, change.seconds, frozenset(there)
        begin = change.seconds
        (there.add if change.added else there.remove)(change.machine)
    yield begin, end, frozenset(there)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 99), less=st.integers(0, 3), seconds=st.floats(10.0, 30_000.0))
def test_a_machine_has_one_fate(seed, less, seconds):
    """In a larger mix, beside other types, and in a longer market."""
    small = changes((LOSSY, CALM), (less, 1), seed=seed, seconds=seconds)
    large = changes((LOSSY, CALM), (3, 2), seed=seed, seconds=2 * seconds)
    assert list(small) == sorted(small, key=lambda each: each.seconds)
    names = {each.machine for each in small}
    assert [e for e in large if e.machine in names and e.seconds < seconds] == list(small)
    other = changes((CALM, LOSSY), (0, less), seed=seed, seconds=seconds)
    if less and len(small) > less + 1:
        assert [e.seconds for e in other] != [e.seconds for e in small if "lossy" in e.machine]


ROWS = tuple(
    TraceRow(milliseconds=1000.0 * at, action=action, name=name)
    for at, action, name in (
        (0, "add", "a"), (0, "add", "b"), (10, "remove", "a"), (20, "add", "c"), (25, "add", "d"),
        (30, "remove", "b"), (40, "remove", "c"),
    )
)  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("begin", [0.0, 0.3, 0.6, 0.99])
def test_a_trace_is_had_as_far_as_it_was_bought(count, begin):
    """By counting: 2 machines, then 1 from 10 s, 2 from 20, 3 from 25, 2 from 30, 1 from 40 on,
    which is when the trace begins anew with 2."""
    known = [(0, 2), (10, 1), (20, 2), (25, 3), (30, 2)]
    market = list(replayed(ROWS, "spot", count, begin=begin, seconds=150.0))
    for moment in [0.5, 3.7, 11.3, 22.4, 26.1, 33.3, 39.9, 44.4, 61.7, 79.2, 103.0, 149.0]:
        there = (moment + 40.0 * begin) % 40.0
        expected = next(n for at, n in reversed(known) if at <= there)
        assert len(held(market, moment)) == min(count, expected)
    kept = [each.machine for each in market if each.added]
    assert len(kept) == len(set(kept)), "who has gone does not come again under its name"
    assert all(kind_name(name) == "spot" for name in kept)


def test_who_is_there_at_a_traces_end_stays_for_its_beginning():
    market = list(replayed(ROWS, "spot", 5, begin=0.0, seconds=45.0))
    assert [(e.added, e.machine) for e in market if 39.0 < e.seconds < 41.0] == [
        (False, "spot/c.1"),
        (True, "spot/b.1+"),
    ]
    assert "spot/d.1" in held(market, 39.0) & held(market, 44.0)


def test_seeds_begin_elsewhere_in_a_trace(tmp_path):
    path = tmp_path / "trace.csv"
    lines = [f"{int(row.milliseconds)},{row.action},{row.name}\n" for row in ROWS]
    path.write_text("".join(lines))
    kind = replace(CALM, trace=str(path))
    markets = [changes((kind,), (2,), seed=seed, seconds=200.0) for seed in range(4)]
    for one, other in itertools.combinations(markets, 2):
        assert [e.seconds for e in one] != [e.seconds for e in other]
