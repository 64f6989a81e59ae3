"""Response lengths against the moments of the log-normal law."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.simulator.response_lengths import prompts_of, response_lengths


@pytest.fixture
def work(make):
    return replace(
        make().workload,
        prompts_per_step=5000,
        mean_tokens=2000.0,
        sigma=0.6,
        group_correlation=0.3,
        max_response_tokens=65_000,
    )


def test_mean_and_spread(work):
    lengths = response_lengths(work, seed=1, step=0)
    assert lengths.mean() == pytest.approx(2000, rel=0.02)
    assert np.log(lengths).std() == pytest.approx(0.6, rel=0.02)


def test_members_of_a_group_are_alike(work):
    logs = np.log(response_lengths(work, seed=1, step=0)).reshape(-1, work.group_size)
    # Var of a group's mean: sigma² (rho + (1 - rho) / n).
    expected = 0.6 * math.sqrt(0.3 + 0.7 / work.group_size)
    assert logs.mean(axis=1).std() == pytest.approx(expected, rel=0.04)


def test_they_grow(work):
    grown = replace(work, growth_per_step=0.02)
    first, last = (response_lengths(grown, seed=1, step=s).mean() for s in (0, 20))
    assert last / first == pytest.approx(1.02**20, rel=0.04)


def test_a_limit_cuts_off_what_is_longer_and_changes_nothing_else(work):
    whole = response_lengths(work, seed=1, step=3)
    short = response_lengths(replace(work, max_response_tokens=1500), seed=1, step=3)
    assert (short == np.minimum(whole, 1500)).all()


def test_seed_and_step_decide(work):
    same = [response_lengths(work, seed=2, step=7) for _ in range(2)]
    assert (same[0] == same[1]).all()
    assert (same[0] != response_lengths(work, seed=2, step=8)).any()
    assert (same[0] != response_lengths(work, seed=3, step=7)).any()


def test_each_epoch_has_every_prompt_once_in_an_order_of_its_own(work):
    """Steps of 5,000 prompts of a set of 7,500: two epochs are three steps."""
    some = replace(work, epoch_prompts=7500)
    numbers = np.concatenate([prompts_of(some, seed=1, step=step) for step in range(3)])
    first, second = numbers[:7500], numbers[7500:]
    assert sorted(first) == sorted(second) == list(range(7500))
    assert (first != second).any()


def test_a_prompt_that_comes_again_is_as_hard_as_before(work):
    """Means of four logarithms each: shared variance 0.3 of 0.3 + 0.7 / 4."""
    some = replace(work, epoch_prompts=5000, group_size=4)
    means = []
    for step in (0, 1):
        logs = np.log(response_lengths(some, seed=1, step=step)).reshape(-1, 4).mean(axis=1)
        means.append(logs[np.argsort(prompts_of(some, seed=1, step=step))])
    expected = 0.3 / (0.3 + 0.7 / 4)
    assert np.corrcoef(*means)[0, 1] == pytest.approx(expected, abs=0.04)
