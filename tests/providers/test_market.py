"""Market events: determinism, traces as written, rates against closed forms."""

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.providers.market import MarketEvent, initial_capacity, market_events
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig

CALM = ChaosConfig(
    enabled=False, seed=0, kills_per_minute=8.0, terms_per_minute=2.0, joins_per_minute=20.0
)
FLEET = FleetConfig(
    provider="local",
    max_instances=4,
    sizing="fixed",
    egress_dollars_per_gb=0.0,
    worth_per_hour=0.0,
    merge_tail=False,
    trace="",
    trace_speed=60.0,
    synthetic_lifetime_seconds=1200.0,
    synthetic_gap_seconds=300.0,
    price_per_hour=1.0,
    reserved_price_per_hour=1.0,
    orphan_seconds=60.0,
    notices="none",
    notice_signal="SIGTERM",
    notice_seconds=0.0,
    chaos=CALM,
)
CHAOS = dataclasses.replace(FLEET, chaos=dataclasses.replace(CALM, enabled=True))
SYNTHETIC = dataclasses.replace(FLEET, trace="synthetic")


def first(settings: FleetConfig, count: int, seed: int = 0) -> list[MarketEvent]:
    return list(itertools.islice(market_events(settings, seed=seed), count))


def test_a_calm_market_without_a_trace_has_no_events():
    assert first(FLEET, 1) == [] and initial_capacity(FLEET) == 4


def test_nothing_is_lent_where_nobody_starts_servers():
    assert initial_capacity(dataclasses.replace(FLEET, provider="none")) == 0


@given(
    rows=st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), min_size=1, max_size=30),
    speed=st.sampled_from([1.0, 60.0, 0.5]),
)
def test_a_trace_is_replayed_as_written(tmp_path_factory, rows, speed):
    rows = sorted(rows)
    path = tmp_path_factory.mktemp("traces") / "trace.csv"
    path.write_text(
        "".join(f"{ms},{'add' if add else 'remove'},node{i}\n" for i, (ms, add) in enumerate(rows))
    )
    settings = dataclasses.replace(FLEET, trace=str(path), trace_speed=speed)
    events = list(market_events(settings, seed=0))
    assert initial_capacity(settings) == 0
    assert [(e.kind, e.name) for e in events] == [
        ("add" if add else "kill", f"node{i}") for i, (_, add) in enumerate(rows)
    ]
    np.testing.assert_allclose([e.seconds for e in events], [ms / 1000 / speed for ms, _ in rows])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot read"),
        ("0,add,a\n5,vanish,a\n", "line 2"),
        ("0,add,a\n\n9,add,b\n8,remove,a\n", "line 4"),
        ("zero,add,a\n", "line 1"),
        ("0,add\n", "line 1"),
        ("", "no rows"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_trace_that_makes_no_sense_is_an_error_at_once(tmp_path, text, reason):
    path = tmp_path / "trace.csv"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=rf"fleet\.trace: .*{reason}") as error:
        market_events(dataclasses.replace(FLEET, trace=str(path)), seed=0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [CHAOS, SYNTHETIC])
def test_the_same_seeds_give_the_same_market(settings):
    assert first(settings, 200, seed=3) == first(settings, 200, seed=3)
    draws = [e.draw for e in first(settings, 200, seed=3)]
    assert draws != [e.draw for e in first(settings, 200, seed=4)]
    assert all(0 <= draw < 1 for draw in draws)


def test_chaos_has_its_own_seed():
    other = dataclasses.replace(CHAOS, chaos=dataclasses.replace(CHAOS.chaos, seed=1))
    same = [e.seconds for e in first(CHAOS, 50, seed=1)]
    assert same == [e.seconds for e in first(CHAOS, 50, seed=2)]
    assert same != [e.seconds for e in first(other, 50, seed=1)]


def test_chaos_events_are_poisson_with_the_rates_asked_for():
    """Counts in a minute have mean λ and variance λ, and the kinds are drawn independently."""
    events = [e for e in first(CHAOS, 30_000) if e.seconds < 900 * 60]
    assert len(events) > 26_000  # 30 a minute for 900 minutes, and no early end
    for kind, rate in (("kill", 8.0), ("terminate", 2.0), ("add", 20.0)):
        minutes = [int(e.seconds // 60) for e in events if e.kind == kind]
        counts = np.bincount(minutes, minlength=900)
        # Five standard errors: √(λ/n) of the mean, about λ√(2/n) of the variance.
        assert abs(counts.mean() - rate) < 5 * (rate / 900) ** 0.5
        assert abs(counts.var() - rate) < 5 * rate * (2 / 900) ** 0.5 + 5 * (rate / 900) ** 0.5
    assert {e.name for e in events} == {""}


def test_the_last_machine_is_not_spared():
    """Four machines and 10 removals a minute against 20 returns: none are left at times."""
    capacity, lowest = initial_capacity(CHAOS), 4
    for event in first(CHAOS, 2000):
        capacity = min(4, capacity + 1) if event.kind == "add" else max(0, capacity - 1)
        lowest = min(lowest, capacity)
    assert lowest == 0


def test_no_rates_no_chaos():
    still = dataclasses.replace(
        CHAOS.chaos, kills_per_minute=0.0, terms_per_minute=0.0, joins_per_minute=0.0
    )
    assert first(dataclasses.replace(FLEET, chaos=still), 1) == []


def test_the_synthetic_hazard_is_that_of_its_closed_form():
    """Lives and gaps are exponential, so availability is lifetime / (lifetime + gap)."""
    events = first(SYNTHETIC, 40_000, seed=7)
    assert [(e.kind, e.seconds) for e in events[:4]] == [("add", 0.0)] * 4
    lives, gaps, since = [], [], {}
    for event in events:
        seconds = event.seconds * SYNTHETIC.trace_speed
        if event.name in since:
            (gaps if event.kind == "add" else lives).append(seconds - since[event.name])
        since[event.name] = seconds
    for times, mean in ((lives, 1200.0), (gaps, 300.0)):
        # Five standard errors of the mean of an exponential, and P(T > mean) = 1/e.
        assert abs(np.mean(times) - mean) < 5 * mean / len(times) ** 0.5
        longer = np.mean(np.array(times) > mean)
        assert abs(longer - np.exp(-1)) < 5 * 0.5 / len(times) ** 0.5
    available = sum(lives) / (sum(lives) + sum(gaps))
    assert abs(available - 0.8) < 0.01


def test_machines_of_the_synthetic_trace_are_added_and_removed_in_turn():
    present = set()
    for event in first(SYNTHETIC, 1000):
        assert (event.name in present) == (event.kind == "kill")
        present ^= {event.name}


def test_more_machines_do_not_change_the_fate_of_one():
    def fate(machines: int) -> list[float]:
        settings = dataclasses.replace(SYNTHETIC, max_instances=machines)
        return [e.seconds for e in first(settings, 2000) if e.name == "machine0"][:50]

    assert fate(1) == fate(4)


def test_trace_and_chaos_are_merged_in_time():
    both = dataclasses.replace(SYNTHETIC, chaos=CHAOS.chaos)
    seconds = [e.seconds for e in first(both, 1000)]
    assert seconds == sorted(seconds)
    assert {e.name == "" for e in first(both, 1000)} == {True, False}


def test_the_provider_and_the_market_need_no_jax():
    program = (
        "import sys, rlboost_jax.providers.provider_choice, rlboost_jax.providers.market;"
        "import rlboost_jax.weights.serve;"
        "print('jax' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "False", ran.stderr
