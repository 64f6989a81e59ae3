import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.stream.micro_batches import MicroBatches


@st.composite
def arrivals(draw):
    num_prompts = draw(st.integers(1, 20))
    size = draw(st.integers(1, 8))
    return num_prompts, size, draw(st.permutations(range(num_prompts)))


def run(num_prompts, size, order, *, deterministic):
    """Micro-batches as lists of prompts, with the number of groups that had arrived."""
    micro_batches = MicroBatches(num_prompts, size, deterministic)
    ready = {}
    for arrived, prompt in enumerate(order, start=1):
        for index, members in micro_batches.add(Group(prompt=prompt, trajectories=())):
            assert index not in ready
            ready[index] = ([group.prompt for group in members], arrived)
    assert sorted(ready) == list(range(micro_batches.num_micro_batches))
    return ready


@given(arrivals())
def test_deterministic_membership_is_fixed_by_the_prompt(case):
    num_prompts, size, order = case
    for index, (prompts, arrived) in run(*case, deterministic=True).items():
        assert prompts == list(range(num_prompts))[index * size : (index + 1) * size]
        assert arrived == max(order.index(p) for p in prompts) + 1  # not a moment later


@given(arrivals())
def test_otherwise_the_first_to_finish_are_the_first_to_train(case):
    num_prompts, size, order = case
    for index, (prompts, arrived) in run(*case, deterministic=False).items():
        assert prompts == sorted(order[index * size : (index + 1) * size])
        assert arrived == min((index + 1) * size, num_prompts)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_prompt_comes_once_and_exists(deterministic):
    micro_batches = MicroBatches(4, 2, deterministic)
    micro_batches.add(Group(prompt=1, trajectories=()))
    with pytest.raises(ValueError, match="prompt 1 of 4 was added before"):
        micro_batches.add(Group(prompt=1, trajectories=()))
    with pytest.raises(ValueError, match="prompt 4 of 4 does not exist"):
        micro_batches.add(Group(prompt=4, trajectories=()))


@pytest.mark.parametrize("sizes", [(0, 2), (4, 0)])
def test_empty_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match=r"raise learner\.prompts_per_step"):
        MicroBatches(*sizes, True)
