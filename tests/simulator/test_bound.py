"""The bound of one who knows everything, against simulated runs and closed forms."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlboost_jax.simulator.bound import lag_bound, run_bound, step_bound
from rlboost_jax.simulator.economics import dollars
from rlboost_jax.simulator.market.simulated_market import static
from rlboost_jax.simulator.rates import EngineRates, train_seconds
from rlboost_jax.simulator.response_lengths import response_lengths
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

CROWDED = {"slots": 32, "memory": 0.19, "mean": 800.0, "correlation": 0.0, "price": 1.0}


@example(instances=0, window="paper", merges=False, **CROWDED)
@example(instances=2, window="model", merges=True, **CROWDED)
@settings(max_examples=10, deadline=None)
@given(
    instances=st.integers(0, 5),
    slots=st.sampled_from([4, 32]),
    memory=st.sampled_from([0.19, 0.24, 0.85]),
    mean=st.sampled_from([200.0, 800.0]),
    correlation=st.sampled_from([0.0, 0.8]),
    price=st.sampled_from([1.0, 40.0]),
    window=st.sampled_from(["paper", "model"]),
    merges=st.booleans(),
)
def test_no_run_beats_it(instances, slots, memory, mean, correlation, price, window, merges):
    """Neither in time nor in money, whichever policy it has."""
    config = make_config(
        engine__slots=slots, engine__memory_fraction=memory, workload__mean_tokens=mean,
        workload__group_correlation=correlation, instance__price_per_hour=price, num_steps=3,
        policy__window=window, policy__merge_tail=merges, instance__start_seconds=1.0,
    )  # fmt: skip
    rows = World(config, static(instances).changes, seed=3, seconds=1e6).run()
    for row in rows:
        lengths = response_lengths(config.workload, seed=3, step=row["step"])
        bound = step_bound(config, lengths, instances)
        assert bound.learner <= min(bound.liquid, bound.latency)
        assert max(bound.liquid, bound.latency) <= bound.step + 1e-6
        assert row["step_seconds"] > bound.step
        assert dollars(config, row) > bound.dollars


def test_what_fills_slots_and_never_the_cache_is_a_liquid():
    """Every engine decodes full batches to the end; the last group is trained after it."""
    config = make_config(engine__memory_fraction=0.85, trainer__micro_batch_seconds=0.0)
    rates, prompt, tokens = EngineRates(config), config.workload.prompt_tokens, 700
    read = rates.step_seconds(1, 1) - rates.step_seconds(1, 0)
    steps = 64 * tokens / 32 * rates.step_seconds(32, 0)
    total = steps + 64 * read * (tokens * prompt + tokens * (tokens - 1) / 2)
    group = train_seconds(config, [prompt + tokens] * 4)
    after = config.trainer.apply_seconds
    after += config.weight_bytes / config.links.host_bytes_per_second
    begin, switch = config.trainer.begin_seconds, config.trainer.switch_seconds
    learner = begin + switch + 16 * group + after
    bound = step_bound(config, [tokens] * 64, 1)
    assert bound.learner == pytest.approx(learner)
    # Two engines until S − learner and one until S − group − after − begin have done all.
    assert bound.liquid == pytest.approx((total + 2 * learner + group + after + begin) / 3)
    assert bound.liquid > learner


def test_without_end_of_engines_the_longest_response_stays():
    config = make_config(trainer__micro_batch_seconds=0.0)
    lengths = [100] * 60 + [3000] * 4
    rates, trainer = EngineRates(config), config.trainer
    one = sum(rates.step_seconds(1, config.workload.prompt_tokens + n) for n in range(3000))
    prompt = config.workload.prompt_tokens
    after = train_seconds(config, [prompt + 100] * 4) + trainer.apply_seconds
    after += config.weight_bytes / config.links.host_bytes_per_second
    bound = step_bound(config, lengths, 10_000)
    assert bound.latency == pytest.approx(bound.step)
    assert bound.step == pytest.approx(trainer.begin_seconds + one + after, rel=1e-3)


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("instances", [0, 2, 5])
def test_no_lag_beats_the_bound_of_a_run(lag, instances):
    config = make_config(trainer__lag=lag, num_steps=6)
    rows = World(config, static(instances).changes, seed=3, seconds=1e6).run()
    steps = [response_lengths(config.workload, seed=3, step=row["step"]) for row in rows]
    bound = run_bound(config, steps, lambda seconds: instances * seconds)
    assert sum(row["step_seconds"] for row in rows) > bound
    ends = np.cumsum([row["step_seconds"] for row in rows])
    for known in range(len(ends)):
        bounds = lag_bound(
            config, steps, lambda seconds: instances * seconds, lag=lag, ends=ends[:known]
        )
        assert bounds[-1] >= bound - 1e-6 and np.all(ends[known:] > np.array(bounds[known:]) - 1e-6)


@pytest.mark.parametrize("instances", [0, 0.5, 3])
def test_the_bound_of_a_lag_is_that_of_its_tightest_batches(instances):
    """Equal steps: without a lag each takes what one takes alone, less what may not be waited for;
    with any lag as many as the run's bound."""
    config = make_config(engine__memory_fraction=0.85)
    lengths = [[700] * 64] * 5

    def lent(seconds):
        return instances * seconds

    one = lag_bound(config, lengths[:1], lent, lag=0)[0]
    learner = step_bound(config, lengths[0], 0).learner - config.trainer.switch_seconds
    assert lag_bound(config, lengths, lent, lag=0)[-1] == pytest.approx(5 * one)
    ahead = lag_bound(config, lengths, lent, lag=4)[-1]
    latency = lag_bound(config, lengths[:1], lambda seconds: 1e9 * seconds, lag=0)[0]
    least = max(run_bound(config, lengths, lent), latency + 4 * learner)
    assert ahead == pytest.approx(least)
    between = [lag_bound(config, lengths, lent, lag=lag)[-1] for lag in range(5)]
    assert between == sorted(between, reverse=True)


def test_a_run_is_bound_by_its_learner_or_by_all_engines():
    """64 equal responses to 16 prompts in each of 5 steps, as in the test of one step."""
    config = make_config(engine__memory_fraction=0.85)
    lengths = [700] * 64
    # Engines that never need the learner's chips never switch them.
    learner = step_bound(config, lengths, 0).learner - config.trainer.switch_seconds
    assert run_bound(config, [lengths] * 5, lambda seconds: 1e9) == pytest.approx(5 * learner)
    alone = run_bound(config, [lengths] * 5, lambda seconds: 0.0)
    works = config.num_engines * (alone - 5 * learner)  # engine-seconds
    shared = run_bound(config, [lengths] * 5, lambda seconds: 0.5 * seconds)
    engines = config.num_engines + 0.5
    assert shared == pytest.approx((works + config.num_engines * 5 * learner) / engines)
