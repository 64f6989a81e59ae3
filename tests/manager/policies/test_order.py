"""The first wave of a step, against what it is meant to be."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.policies.order import (
    LEADS,
    PROBE,
    REST,
    WHOLE,
    first_wave,
    later_waves,
    leaders_first,
    leaders_order,
    predicted_order,
)

sizes_of_groups = st.lists(st.integers(1, 9), min_size=1, max_size=40)


def test_whole_groups_with_the_slots_that_probes_leave():
    assert first_wave([3, 3, 3], 5).tolist() == [
        *(WHOLE, WHOLE, WHOLE),
        *(PROBE, REST, REST),
        *(PROBE, REST, REST),
    ]


@given(sizes_of_groups, st.integers(0, 400))
def test_of_every_group_one_is_begun_and_no_slot_is_overdrawn(sizes, slots):
    ranks = np.split(first_wave(sizes, slots), np.cumsum(sizes)[:-1])
    begun = [int((group < REST).sum()) for group in ranks]
    assert [len(group) for group in ranks] == sizes
    assert all(count in (1, size) for count, size in zip(begun, sizes, strict=True))
    assert sum(begun) <= max(slots, len(sizes))


@given(sizes_of_groups, st.integers(0, 400))
def test_the_next_group_would_not_have_fitted(sizes, slots):
    ranks = np.split(first_wave(sizes, slots), np.cumsum(sizes)[:-1])
    whole = [bool((group == WHOLE).all()) for group in ranks]
    if not all(whole):
        first = whole.index(False)
        assert not any(whole[first:])
        assert sum(sizes[: first + 1]) + len(sizes) - first - 1 > slots


def test_after_the_first_wave_groups_by_what_their_means_will_show():
    """Three groups of two and four slots: the first is whole, of the others the longer one."""
    group = np.array([0, 0, 1, 1, 2, 2])
    lengths = np.array([9.0, 9.0, 1.0, 2.0, 3.0, 4.0])
    assert predicted_order(group, lengths, 4).tolist() == [0, 1, 2, 4, 5, 3]


def test_leaders_and_then_groups_by_what_these_say():
    """Three groups; the second's leader says most, the third's least."""
    group = np.array([0, 0, 0, 1, 1, 2, 2])
    lengths = np.array([5.0, 1.0, 9.0, 7.0, 2.0, 1.0, 99.0])
    assert leaders_order(group, lengths).tolist() == [0, 3, 5, 4, 1, 2, 6]


def test_of_a_group_that_nothing_is_known_of_one_goes_first():
    ranks = np.array([-5.0, -6.0, -8.0, -7.0, -1.0, -2.0])
    begun = [[False, True], [False, False], [True, True]]
    assert later_waves(ranks, begun).tolist() == [-5.0, -6.0, -np.inf, -7.0, -1.0, -2.0]


def test_one_of_each_group_leads_and_the_others_follow_where_most_is_said():
    ranks = leaders_first(range(9), 3, {0: 5, 1: 0, 2: 7})
    assert sorted(ranks, key=lambda sample: (ranks[sample], sample)) == [0, 3, 6, 7, 8, 1, 2, 4, 5]
    assert [sample for sample, rank in ranks.items() if rank == LEADS] == [0, 3, 6]
