"""Placement and moves by their properties, over generated fleets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.policies.placement import (
    InstancePace,
    Load,
    assign,
    even_moves,
    pending_moves,
    places,
    room,
    running_moves,
)

THETA = 3

loads = st.lists(
    st.builds(
        lambda slots, held, groups: Load(
            slots=slots, held=min(held, slots + THETA), groups=set(groups)
        ),
        st.integers(1, 8),
        st.integers(0, 11),
        st.lists(st.integers(0, 4), max_size=4),
    ),
    min_size=1,
    max_size=6,
)


def longest_wait(fleet: list[Load]) -> int:
    return max(load.pending for load in fleet)


@given(loads, st.data(), st.integers(1, 4))
def test_shortest_queue_one_by_one(fleet: list[Load], data: st.DataObject, group_size: int) -> None:
    """Against a plain scan: each rollout goes where, at its turn, least is pending."""
    free = room(fleet, THETA)
    count = data.draw(st.integers(0, free))
    prompts = sorted(data.draw(st.integers(0, 4)) for _ in range(count))
    held = [load.held for load in fleet]
    for index in assign(prompts, fleet, max_pending=THETA, group_size=group_size):
        pending = [max(0, h - load.slots) for h, load in zip(held, fleet, strict=True)]
        assert pending[index] == min(pending)
        idle_elsewhere = any(h < load.slots for h, load in zip(held, fleet, strict=True))
        assert held[index] < fleet[index].slots or not idle_elsewhere
        held[index] += 1
    assert held == [load.held for load in fleet]
    assert all(h <= load.slots + THETA for h, load in zip(held, fleet, strict=True))


@given(loads, st.data())
def test_places_are_those_of_rollouts_of_which_nothing_is_known(
    fleet: list[Load], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, room(fleet, THETA)))
    alone = [Load(slots=load.slots, held=load.held) for load in fleet]
    expected = assign(range(count), alone, max_pending=THETA, group_size=1)
    assert places(count, fleet, max_pending=THETA) == expected
    with pytest.raises(ValueError, match="no room"):
        places(room(fleet, THETA) + 1, fleet, max_pending=THETA)


@given(loads)
def test_room_is_exactly_what_fits(fleet: list[Load]) -> None:
    free = room(fleet, THETA)
    assert len(assign([0] * free, fleet, max_pending=THETA, group_size=2)) == free
    assert room(fleet, THETA) == 0
    with pytest.raises(ValueError, match="no room"):
        assign([0], fleet, max_pending=THETA, group_size=2)


def test_few_rollouts_are_spread_evenly() -> None:
    fleet = [Load(slots=8, held=0), Load(slots=8, held=0)]
    assert assign([0, 0, 0, 0], fleet, max_pending=0, group_size=4) == [0, 1, 0, 1]


def test_among_equals_a_group_stays_together() -> None:
    fleet = [Load(slots=8, held=1), Load(slots=8, held=1, groups={5})]
    assert assign([5], fleet, max_pending=0, group_size=4) == [1]


def test_many_groups_go_as_wholes() -> None:
    fleet = [Load(slots=64, held=0) for _ in range(4)]
    prompts = [prompt for prompt in range(16) for _ in range(8)]
    chosen = assign(prompts, fleet, max_pending=0, group_size=8)
    homes = {p: {c for q, c in zip(prompts, chosen, strict=True) if q == p} for p in prompts}
    assert all(len(home) == 1 for home in homes.values())
    assert max(load.held for load in fleet) - min(load.held for load in fleet) <= 8


def test_a_group_does_not_wait_at_home_while_there_is_a_free_slot() -> None:
    fleet = [Load(slots=4, held=4, groups={0}), Load(slots=64, held=48)]
    assert assign([0] * 16, fleet, max_pending=8, group_size=4) == [1] * 16


@given(loads, st.integers(0, 5))
def test_pending_moves_fill_free_slots_from_the_longest_queue(
    fleet: list[Load], transit: int
) -> None:
    moves = pending_moves(fleet, transit)
    free = sum(max(0, load.slots - load.held) for load in fleet)
    pending = sum(load.pending for load in fleet)
    assert sum(moves) == max(0, min(free - transit, pending))
    left = [load.pending - move for load, move in zip(fleet, moves, strict=True)]
    assert min(left) >= 0
    if any(moves):  # none was taken from a queue while another was longer
        shortest_giver = min(k for k, move in zip(left, moves, strict=True) if move)
        assert max(left) <= shortest_giver + 1


@pytest.mark.parametrize(
    ("running", "idle", "plateau", "moved"),
    [
        (8, 1, 2, 4),  # 6 are above B, but half stays
        (8, 1, 6, 2),  # only what is above B
        (8, 3, 2, 6),
        (8, 1, 8, 0),
        (8, 1, 0, 0),  # no profile yet
        (1, 1, 1, 0),
    ],
)
def test_running_moves_above_the_plateau_to_idle_instances(
    running: int, idle: int, plateau: int, moved: int
) -> None:
    assert running_moves(Load(slots=8, held=running, plateau=plateau), idle) == moved


@given(loads, st.integers(0, 4))
def test_running_moves_never_swap_roles(fleet: list[Load], plateau: int) -> None:
    idle = sum(not load.held for load in fleet)
    for load in fleet:
        load.plateau = plateau
        move = running_moves(load, idle)
        assert move == 0 or (load.running - move) * idle >= move


def mixed(seconds: list[float], held: list[int], *, row: float = 0.1) -> list[Load]:
    """Engines whose decode steps take so long, for responses of 100 tokens."""
    return [
        Load(slots=8, held=count, pace=InstancePace(base=base, row=row, tokens=100.0))
        for base, count in zip(seconds, held, strict=True)
    ]


def test_a_rollout_goes_where_it_ends_first() -> None:
    """1.0 + 0.1 n against 1.5 + 0.1 n seconds a step: the fast one has five before the other gets
    its first; from there on both get as many."""
    fleet = mixed([1.0, 1.5], [0, 0])
    chosen = assign([0] * 9, fleet, max_pending=THETA, group_size=1)
    assert chosen[:5] == [0] * 5
    assert [load.held for load in fleet] == [7, 2]


def test_nobody_waits_while_a_slow_one_has_a_slot() -> None:
    fleet = mixed([1.0, 9.0], [8, 0])
    assert assign([0], fleet, max_pending=THETA, group_size=1) == [1]


@given(st.lists(st.integers(0, 8), min_size=2, max_size=6), st.data())
def test_moves_between_paces_make_all_end_alike_and_come_to_an_end(
    held: list[int], data: st.DataObject
) -> None:
    """Against all ways to divide the rollouts among the slots: none ends sooner."""
    seconds = [data.draw(st.sampled_from([1.0, 1.4, 3.0])) for _ in held]
    fleet = mixed(seconds, held)
    moves = even_moves(fleet)
    assert all(0 <= count <= load.held for count, load in zip(moves, fleet, strict=True))
    if not any(moves):
        return
    before = latest_end(fleet)
    for load, count in zip(fleet, moves, strict=True):
        load.held -= count
    for _ in range(sum(moves)):  # one by one, as they come back
        assign([0], fleet, max_pending=THETA, group_size=1)
    assert latest_end(fleet) <= before
    assert sum(load.held for load in fleet) == sum(held)
    assert latest_end(fleet) == pytest.approx(least_end(seconds, sum(held)))
    assert not any(even_moves(fleet))


def latest_end(fleet: list[Load]) -> float:
    return max(load.pace.seconds(load.running) for load in fleet if load.held and load.pace)


def least_end(seconds: list[float], rollouts: int) -> float:
    """Least end of fleets of `mixed` that leaves room for so many rollouts."""
    paces = [load.pace for load in mixed(seconds, [0] * len(seconds)) if load.pace]
    ends = sorted(pace.seconds(count) for pace in paces for count in range(1, 9))
    return next(
        end
        for end in ends
        if rollouts <= sum(sum(p.seconds(n) <= end for n in range(1, 9)) for p in paces)
    )


def test_equals_share_what_one_of_them_took_before_the_others_were_there() -> None:
    """8 · 8 rollouts at the first, of 1 + n / 10 seconds a step; the rest came to nothing."""
    fleet = [
        Load(slots=64, held=held, pace=InstancePace(base=1.0, row=0.1, tokens=100.0))
        for held in (64, 2, 2, 0)
    ]
    assert even_moves(fleet) == [47, 0, 0, 0]
    assert even_moves(fleet[1:]) == [0, 0, 0]  # 1.2 against 1.1 seconds: not worth a prefill


def test_without_all_paces_it_goes_by_what_is_pending() -> None:
    fleet = mixed([1.0, 9.0], [3, 1])
    fleet[0].pace = None
    assert even_moves(fleet) == [0, 0]
    assert assign([0], fleet, max_pending=THETA, group_size=1) == [1]
