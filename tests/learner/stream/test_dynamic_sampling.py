"""Whatever the order of arrival: the same batch."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.learner.stream.dynamic_sampling import DynamicSampling, dynamic_sampling
from rlboost_jax.settings.presets import PRESETS

patterns = st.lists(st.booleans(), min_size=1, max_size=40)


def run(sampling, pattern, order):
    """Let groups finish in an order drawn from `order` until the batch is whole.

    Returns what was handed on.
    """
    outstanding, handed = [], []
    while not sampling.complete:
        outstanding += sampling.ask()
        prompt = outstanding.pop(order.randrange(len(outstanding)))
        handed += sampling.add(prompt, pattern[prompt])
    assert not sampling.ask(), "a full batch asks for nothing"
    assert not outstanding, "and has nothing generated in vain"
    return handed


@given(patterns, st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_order_gives_the_same_batch(pattern, wanted, order):
    wanted = min(wanted, len(pattern))
    sampling = DynamicSampling(num_groups=wanted, most_prompts=len(pattern))
    handed = run(sampling, pattern, order)

    good = [prompt for prompt, is_good in enumerate(pattern) if is_good]
    poor = [prompt for prompt, is_good in enumerate(pattern) if not is_good]
    expected = (good + poor)[:wanted] if len(good) < wanted else good[:wanted]
    assert list(sampling.members) == expected
    assert handed == list(enumerate(expected)), "each once, in the order of ranks"
    used = len(pattern) if len(good) < wanted else good[wanted - 1] + 1
    assert sampling.prompts_used == used


@given(patterns, st.integers(1, 12), st.randoms(use_true_random=False))
def test_no_more_is_asked_for_than_could_be_needed(pattern, wanted, order):
    """Until the last answer, one prompt fewer could not have filled the batch."""
    pattern = pattern + [True] * wanted
    sampling = DynamicSampling(num_groups=wanted, most_prompts=len(pattern))
    asked, outstanding, found = 0, [], 0
    while not sampling.complete:
        new = sampling.ask()
        asked, outstanding = asked + len(new), outstanding + list(new)
        assert found + len(outstanding) >= wanted
        assert not new or found + len(outstanding) == wanted
        prompt = outstanding.pop(order.randrange(len(outstanding)))
        found += pattern[prompt]
        sampling.add(prompt, pattern[prompt])


def test_the_trap_of_short_responses_first_the_batch_is_not_what_arrived_first():
    """Prompt 0 takes longest; 1, which teaches nothing, and 2 in its place are there before."""
    sampling = DynamicSampling(num_groups=2, most_prompts=8)
    assert sampling.ask() == range(2)
    assert sampling.add(1, False) == []
    assert sampling.ask() == range(2, 3)
    assert sampling.add(2, True) == []
    assert sampling.add(0, True) == [(0, 0), (1, 2)]
    assert sampling.complete and sampling.prompts_used == 3


def test_steps_follow_on_each_other():
    """Prompts beyond the last member were not asked for."""
    pattern = [False, True, True, False, True, True, True, False, True]
    cursor, batches = 0, []
    for _ in range(2):
        sampling = DynamicSampling(num_groups=2, most_prompts=5)
        run(sampling, pattern[cursor:], random.Random(0))
        batches.append([cursor + prompt for prompt in sampling.members])
        cursor += sampling.prompts_used
    assert (batches, cursor) == ([[1, 2], [4, 5]], 6)


@pytest.mark.parametrize(("prompt", "state"), [(0, "was added before"), (2, "was not asked for")])
def test_an_unknown_group_is_a_mistake(prompt, state):
    sampling = DynamicSampling(num_groups=2, most_prompts=4)
    sampling.ask()
    sampling.add(0, False)
    with pytest.raises(ValueError, match=f"prompt {prompt} of 2 {state}"):
        sampling.add(prompt, True)


def test_it_has_used_nothing_before_it_is_whole():
    with pytest.raises(ValueError, match="0 of 2 groups are there"):
        DynamicSampling(num_groups=2, most_prompts=4).prompts_used  # noqa: B018


def test_a_run_has_it_if_its_algorithm_does(config):
    assert dynamic_sampling(config) is None
    run = replace(config, algorithm=PRESETS["dapo"])
    sampling = dynamic_sampling(run)
    assert sampling is not None
    assert sampling.num_groups == run.learner.prompts_per_step == sampling.most_prompts // 4
