"""Forecasts against closed forms, and the window against trying them all."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlboost_jax.manager.policies.forecast import (
    RESOLUTION,
    WAITS,
    Engines,
    ForecastJob,
    ForecastPlan,
    LearnerPace,
    best_window,
    forecast,
)
from rlboost_jax.manager.policies.speeds import Rates
from tests.computing import limited

STEADY = Rates(step=0.01, row=0.0, context=0.0, prefill=0.0)  # 100 steps per second


def plan(
    remaining: list[float],
    *,
    reserved: int = 1,
    remote: int = 1,
    slots: int = 1,
    rates: Rates = STEADY,
    train: float = 0.0,
    **more: object,
) -> ForecastPlan:
    """Groups of one; only responses count."""
    return ForecastPlan(
        engines=[
            Engines(count=reserved, slots=slots, rates=rates, **more),  # type: ignore[arg-type]
            Engines(count=remote, slots=slots, rates=rates, **more),  # type: ignore[arg-type]
        ],
        jobs=[
            ForecastJob(group=n, context=0.0, remaining=tokens, place=WAITS)
            for n, tokens in enumerate(remaining)
        ],
        tokens=remaining,
        learner=LearnerPace(seconds_per_token=train, micro_batch_groups=1, fixed=False),
    )


def test_one_engine_takes_the_sum() -> None:
    """1,000 and 3,000 tokens at 100 per second, one after the other."""
    found = forecast(plan([1000.0, 3000.0], remote=0), math.inf)
    assert found.rollout == pytest.approx(40.0, rel=0.01)
    assert found.window == found.rollout and found.wait == 0.0


def test_contexts_slow_a_step_down() -> None:
    """n tokens take Σ (a + c·k) = n·a + c·n²/2 seconds."""
    rates = Rates(step=0.01, row=0.0, context=1e-5, prefill=0.0)
    found = forecast(plan([2000.0], remote=0, rates=rates), math.inf)
    assert found.rollout == pytest.approx(20.0 + 1e-5 * 2000**2 / 2, rel=1e-3)


def test_what_the_reserved_engine_held_goes_on_elsewhere() -> None:
    """Two of 2,000 tokens; after 5 s one has 1,500 left, which come after the other's: at
    20 + 15 s. It is prefilled with its 500 tokens."""
    rates = Rates(step=0.01, row=0.0, context=0.0, prefill=0.01)
    found = forecast(plan([2000.0, 2000.0], rates=rates), 5.0)
    assert found.window == 5.0
    assert found.rollout == pytest.approx(20.0 + 5.0 + 15.0, rel=0.01)


def test_the_learner_trains_what_is_complete() -> None:
    """Groups complete at 10, 20, 30, 40 s, 4 s of training each; from 15 s on, when one is
    ready: 19, wait until 20, 24, until 30, 34, until 40, 44."""
    found = forecast(plan([1000.0] * 4, reserved=0, train=0.004), 15.0)
    assert found.window == 0.0  # no reserved engine has anything
    assert found.end == pytest.approx(44.0, rel=0.02)
    assert found.wait == pytest.approx(44.0 - 16.0, rel=0.02)


def test_a_full_cache_makes_one_wait() -> None:
    """Two of 1,000 tokens in a cache of 1,500: both run to 750, then one to its end, and the
    other begins again with what it has."""
    found = forecast(plan([1000.0, 1000.0], remote=0, slots=2, cache_tokens=1500.0), math.inf)
    assert found.rollout == pytest.approx(7.5 + 2.5 + 2.5, rel=0.02)


def test_steps_that_take_no_time_are_taken() -> None:
    """Two slots, four rollouts, and prefill alone costs: of the three, which another engine had
    begun, 3 tokens each, two at once."""
    rates = Rates(step=0.0, row=0.0, context=0.0, prefill=0.002)
    jobs = [
        ForecastJob(group=n, context=3.0, remaining=tokens, place=WAITS, begun=n > 0)
        for n, tokens in enumerate((2.0, 9.0, 3.0, 12.0))
    ]
    engine = Engines(count=1, slots=2, rates=rates)
    learner = LearnerPace(seconds_per_token=0.0, micro_batch_groups=1, fixed=True)
    found = forecast(
        ForecastPlan(engines=[engine], jobs=jobs, tokens=[5.0] * 4, learner=learner), math.inf
    )
    assert found.rollout == pytest.approx(3 * 3 * 0.002)


SECONDS = st.sampled_from([0.0, 1e-15, 1e-9, 1e-4, 0.01, 1.0])
TOKENS = st.sampled_from([0.0, 0.5, 1.0, 7.0, 90.0]) | st.floats(0.0, 1000.0)
ANY_ENGINES = st.builds(
    Engines,
    count=st.integers(0, 3),
    slots=st.integers(1, 4),
    rates=st.builds(Rates, step=SECONDS, row=SECONDS, context=SECONDS, prefill=SECONDS),
    cache_tokens=st.sampled_from([math.inf, 0.0, 5.0, 90.0]),
)
ANY_JOB = st.builds(
    ForecastJob,
    group=st.integers(0, 3),
    context=st.sampled_from([0.0, 3.0, 30.0]),
    remaining=TOKENS,
    place=st.sampled_from([WAITS, WAITS, 0, 1]),
    begun=st.booleans(),
)


@given(
    st.lists(ANY_ENGINES, min_size=2, max_size=3).filter(lambda all: any(e.count for e in all)),
    st.lists(ANY_JOB, max_size=12),
    st.builds(
        LearnerPace,
        seconds_per_token=SECONDS,
        micro_batch_groups=st.integers(1, 3),
        fixed=st.booleans(),
    ),
)
@example(
    [Engines(count=1, slots=2, rates=STEADY, cache_tokens=0.0)],
    [ForecastJob(group=0, context=0.0, remaining=9.0, place=WAITS)] * 2,
    LearnerPace(seconds_per_token=0.0, micro_batch_groups=1, fixed=False),
)
def test_every_forecast_ends(
    engines: list[Engines], jobs: list[ForecastJob], learner: LearnerPace
) -> None:
    """Whatever was learnt: rates of 0, no room in any cache, nothing to do."""
    tokens = [10.0, 20.0, 30.0, 40.0]
    with limited(5.0):
        found = best_window(
            ForecastPlan(engines=engines, jobs=jobs, tokens=tokens, learner=learner)
        )
    assert 0 <= found.window <= found.end < math.inf
    assert found.end >= max(found.rollout, learner.seconds_per_token * sum(tokens)) * (1 - 1e-9)


def test_fixed_micro_batches_wait_for_their_own() -> None:
    """Two a batch: (0, 1) and (2, 3). By order of completion the two short ones go together."""
    lengths = [1000.0, 4000.0, 1000.0, 4000.0]
    base = plan(lengths, remote=0, reserved=1, slots=4, train=0.002)
    by_time = LearnerPace(seconds_per_token=0.002, micro_batch_groups=2, fixed=False)
    fixed = LearnerPace(seconds_per_token=0.002, micro_batch_groups=2, fixed=True)

    def ends(learner: LearnerPace) -> float:
        given = ForecastPlan(
            engines=base.engines, jobs=base.jobs, tokens=base.tokens, learner=learner
        )
        return forecast(given, 0.0).end

    assert ends(by_time) == ends(fixed)  # without anyone else, training begins when all is done


@pytest.mark.parametrize("remote", [1, 2, 3])
def test_the_window_of_a_liquid(remote: int) -> None:
    """Much work in small pieces: with N reserved and k remote engines of rate r, work W and
    training C, both are done at once where r·(N + k)·T + r·k·C = W, as far as T is positive."""
    work, reserved, train = 240_000.0, 2, 200.0
    pieces = [work / 800] * 800
    found = best_window(plan(pieces, reserved=reserved, remote=remote, train=train / work))
    expected = max(0.0, (work / 100 - remote * train) / (reserved + remote))
    assert found.window == pytest.approx(expected, abs=0.03 * found.end)
    assert found.end == pytest.approx(expected + train, rel=0.02)


def test_rollouts_of_one_step_among_others_are_gathered() -> None:
    """Two on two engines of two slots: side by side each alone at 0.01 s a step, at one engine
    two at 0.02 s."""
    rates = Rates(step=0.0, row=0.01, context=0.0, prefill=0.0)
    given = plan([1000.0, 1000.0], reserved=0, remote=2, slots=2, rates=rates)
    assert forecast(given, 0.0).rollout == pytest.approx(10.0, rel=0.01)
    assert forecast(replace(given, ahead=True), 0.0).rollout == pytest.approx(20.0, rel=0.01)


def test_who_is_gathered_is_prefilled() -> None:
    """Three on two engines of two slots; two end after 10 s, and the third, of 1,000 tokens by
    then, moves with a chance of a half: 0.5 s of prefill, and 10 s more."""
    rates = Rates(step=0.01, row=0.0, context=0.0, prefill=0.001)
    given = plan([1000.0, 1000.0, 2000.0], reserved=0, remote=2, slots=2, rates=rates)
    assert forecast(given, 0.0).rollout == pytest.approx(20.0, rel=0.01)
    assert forecast(replace(given, ahead=True), 0.0).rollout == pytest.approx(20.5, rel=0.01)


def test_who_works_ahead_hands_over_when_the_learner_will_not_wait() -> None:
    """Groups complete at 10, 20, 30, 40 s, 4 s of training each: who begins at 28 s is there for
    the last when it comes. Without later work the reserved engines have nothing to wait for."""
    given = plan([1000.0] * 4, reserved=0, train=0.004)
    ahead = best_window(replace(given, ahead=True))
    assert ahead.window == pytest.approx(28.0, abs=2 * RESOLUTION * 44.0)
    assert ahead.end == pytest.approx(44.0, rel=0.02)
    assert best_window(given).window == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_no_window_is_much_better(seed: int) -> None:
    rng = random.Random(seed)
    rates = Rates(step=0.012, row=1e-5, context=3e-8, prefill=2e-5)
    lengths = [min(9000.0, rng.lognormvariate(7.5, 0.8)) for _ in range(256)]
    given = ForecastPlan(
        engines=[
            Engines(count=2, slots=12, rates=rates, cache_tokens=40_000.0),
            Engines(count=rng.randint(1, 5), slots=12, rates=rates, cache_tokens=40_000.0),
        ],
        jobs=[
            ForecastJob(group=n // 4, context=100.0, remaining=tokens, place=WAITS)
            for n, tokens in enumerate(lengths)
        ],
        tokens=[sum(lengths[n : n + 4]) + 400 for n in range(0, 256, 4)],
        learner=LearnerPace(
            seconds_per_token=rng.uniform(1e-4, 8e-4), micro_batch_groups=2, fixed=bool(seed % 2)
        ),
    )
    found = best_window(given)
    longest = forecast(given, math.inf).window
    best = min(forecast(given, longest * share / 60).end for share in range(61))
    assert found.end <= best * (1 + 4 * RESOLUTION)
    assert found.end <= forecast(given, math.inf).end  # never worse than to generate it all here
