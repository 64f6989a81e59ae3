"""Ends of responses, against a loop over their tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.sequences.endings import finish_reason, kept, stop_positions, stopped

TOKENS = st.lists(st.integers(0, 5), max_size=12)
STOPS = st.frozensets(st.integers(0, 5), max_size=3)


def cut_by_hand(tokens: list[int], stops: frozenset[int], room: int) -> list[int]:
    """Token by token, as long as the one before did not end it."""
    taken: list[int] = []
    for token in tokens:
        if len(taken) == room or (taken and taken[-1] in stops):
            break
        taken.append(token)
    return taken


@given(TOKENS, TOKENS, STOPS, st.integers(0, 14))
def test_what_belongs_to_a_response(
    before: list[int], tokens: list[int], stops: frozenset[int], room: int
) -> None:
    """The response's tokens are in the middle of other responses' tokens."""
    around = np.array([*before, *tokens, *before], np.int32)
    where = stop_positions(around, stops)
    assert where == [i for i, token in enumerate(around.tolist()) if token in stops]
    count = kept(len(before), len(tokens), room=room, stops=where)
    assert tokens[:count] == cut_by_hand(tokens, stops, room)


@given(TOKENS.filter(bool), STOPS, st.integers(1, 14))
def test_it_is_over_where_nothing_more_belongs_to_it(
    tokens: list[int], stops: frozenset[int], most: int
) -> None:
    response = cut_by_hand(tokens, stops, most)
    more = cut_by_hand([*response, 0], stops, most)
    reason = finish_reason(response[-1], len(response), max_tokens=most, stop_ids=stops)
    assert (reason is not None) == (more == response)
    assert (reason == "stop") == (response[-1] in stops) == stopped(response, stops)


def test_one_without_tokens_goes_on() -> None:
    assert finish_reason(3, 0, max_tokens=1, stop_ids={3}) is None
    assert not stopped([], {3})
