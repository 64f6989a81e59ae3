"""Sequences against a list of tokens, each with all that is known of it."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.sequences.sequence import BadSequence, Sequence, runs_after_prompt
from tests.sequences.given import with_given


class Token(NamedTuple):
    id: int
    sampled: bool
    logprob: float = 0.0
    version: int = -1


GIVEN = st.builds(Token, st.integers(0, 99), st.just(False))
SAMPLED = st.builds(
    Token, st.integers(0, 99), st.just(True), st.floats(-9, 0, width=32), st.integers(0, 3)
)
PROMPTS = st.lists(GIVEN, min_size=1, max_size=5)
TOKENS = st.lists(GIVEN | SAMPLED, max_size=20)


def built(prompt: list[Token], tokens: list[Token], sizes: list[int]) -> Sequence:
    """Piece by piece: a piece is of one origin and one version, and no longer than its size."""
    sequence = Sequence.of_prompt([token.id for token in prompt])
    limits = itertools.cycle(sizes)
    for _, alike in itertools.groupby(tokens, key=lambda token: (token.sampled, token.version)):
        left = list(alike)
        while left:
            size = next(limits)
            piece, left = left[:size], left[size:]
            ids = [token.id for token in piece]
            if piece[0].sampled:
                logprobs = [token.logprob for token in piece]
                sequence = sequence.with_sampled(ids, logprobs, version=piece[0].version)
            else:
                sequence = with_given(sequence, ids)
    return sequence


@given(PROMPTS, TOKENS, st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_views_are_those_of_a_list_of_tokens(
    prompt: list[Token], tokens: list[Token], sizes: list[int]
) -> None:
    sequence = built(prompt, tokens, sizes)
    whole = prompt + tokens
    sampled = [place for place, token in enumerate(whole) if token.sampled]
    first = sampled[0] if sampled else len(whole)
    assert sequence.tokens.tolist() == [token.id for token in whole]
    assert sequence.mask.tolist() == [token.sampled for token in whole]
    assert sequence.sampled_positions.tolist() == sampled
    assert sequence.sampled_tokens.tolist() == [whole[place].id for place in sampled]
    assert sequence.logprobs.tolist() == [whole[place].logprob for place in sampled]
    assert sequence.token_versions.tolist() == [whole[place].version for place in sampled]
    assert sequence.num_sampled == len(sampled)
    assert sequence.trained_length == (sampled[-1] + 1 if sampled else 0)
    assert sequence.prompt.tolist() == [token.id for token in whole[:first]]
    assert sequence.continuation.tolist() == [token.id for token in whole[first:]]
    runs = [
        (is_sampled, [token.id for token in alike])
        for is_sampled, alike in itertools.groupby(whole, key=lambda token: token.sampled)
    ]
    assert [(run.sampled, run.tokens.tolist()) for run in sequence.split()] == runs
    assert [run.start for run in sequence.split()] == [
        sum(len(ids) for _, ids in runs[:place]) for place in range(len(runs))
    ]
    assert runs_after_prompt(sequence.runs[1:], len(whole) - first) == sequence.runs[1:]


@given(PROMPTS, TOKENS)
def test_there_is_one_description_of_each_sequence(
    prompt: list[Token], tokens: list[Token]
) -> None:
    """However it grew."""
    whole, bit_by_bit = built(prompt, tokens, [99]), built(prompt, tokens, [1])
    assert whole.runs == bit_by_bit.runs and whole.versions == bit_by_bit.versions
    assert list(whole.digested()) == list(bit_by_bit.digested())


# So few kinds that two sequences are often alike in all but one thing.
FEW = st.lists(
    st.sampled_from([Token(0, False), Token(0, True, -1.0, 0), Token(0, True, -1.0, 1)]),
    max_size=5,
)


@given(FEW, FEW)
def test_different_sequences_have_different_digests(one: list[Token], other: list[Token]) -> None:
    prompt = [Token(0, False)]
    digests = [b"".join(built(prompt, tokens, [99]).digested()) for tokens in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)


def routes(positions: range) -> np.ndarray:
    """Routes of 2 layers with 1 expert each, another one for each position."""
    return np.array([[[2 * place], [2 * place + 1]] for place in positions], np.uint8)


def test_routes_grow_with_the_tokens_that_they_led_to() -> None:
    """Three prompt tokens, two and then one sampled, two given: routes of all positions before the
    last sampled token. After another sampled token the given ones have routes, too."""
    sequence = Sequence.of_prompt([1, 2, 3])
    sequence = sequence.with_sampled([4, 5], [-1, -1], version=0, routes=routes(range(4)))
    sequence = with_given(sequence, [6, 7])
    assert sequence.routes is not None and len(sequence.routes) == 4
    sequence = sequence.with_sampled([8], [-1], version=0, routes=routes(range(4, 7)))
    np.testing.assert_array_equal(sequence.routes, routes(range(7)))
    with pytest.raises(BadSequence, match="routes of 8 positions; 9 are before the last"):
        sequence.with_sampled([9, 9], [-1, -1], version=0, routes=routes(range(7, 8)))
    with pytest.raises(BadSequence, match="routes of some sampled tokens only"):
        sequence.with_sampled([9], [-1], version=0)


def test_prompt_and_response_is_the_simplest_case() -> None:
    sequence = Sequence.of_response([1, 2], [3, 4, 5], [-1, -2, -3], version=7)
    assert sequence.runs == (2, 3) and sequence.versions == ((7, 3),)
    assert sequence.tokens.dtype == np.int32 and sequence.logprobs.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": (2, 2)}, "runs of 2, 2 tokens do not make up a sequence of 5"),
        ({"runs": (0, 5)}, "the first is the prompt's, and each needs at least one"),
        ({"runs": (2, 0, 3)}, "runs of 2, 0, 3 tokens"),
        ({"runs": ()}, "runs of no tokens"),
        ({"logprobs": np.zeros(2, np.float32)}, "2 log-probabilities for 3 sampled tokens"),
        ({"versions": ((7, 2),)}, "versions of 2 tokens for 3 sampled ones"),
        ({"versions": ((7, 3), (8, 0))}, "versions of 3, 0 tokens"),
        ({"routes": routes(range(5))}, "routes of 5 positions; 4 are before the last sampled"),
    ],
)
def test_parts_that_contradict_each_other(changes: dict[str, Any], message: str) -> None:
    parts: dict[str, Any] = {
        "tokens": np.arange(5, dtype=np.int32),
        "runs": (2, 3),
        "logprobs": np.zeros(3, np.float32),
        "versions": ((7, 3),),
    }
    Sequence(**parts)
    with pytest.raises(BadSequence, match=message):
        Sequence(**{**parts, **changes})


def test_runs_of_a_message_are_checked() -> None:
    assert runs_after_prompt((), 4) == (4,) and runs_after_prompt((), 0) == ()
    for reported in ((3,), (2, 0, 2), (5, -1)):
        with pytest.raises(BadSequence, match="do not make up 4"):
            runs_after_prompt(reported, 4)


def test_nobody_changes_one() -> None:
    sequence = Sequence.of_response([1], [2], [-1], version=0)
    with pytest.raises(ValueError, match="read-only"):
        sequence.tokens[0] = 5
