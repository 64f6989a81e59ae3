"""Several sequences of a response, against a list with one entry for each token of all of them."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.messages import pack_logprobs, pack_tokens, unpack_tokens
from rlboost_jax.sequences.transcript import GIVEN
from tests.manager.fakes import begin_batch


@dataclass
class Entry:
    token: int
    sampler: str
    sequence: int


# The sampling instance, and how many tokens; a length to cut at is drawn as a share of all.
KINDS = st.sampled_from(["a", "b", GIVEN, "next", "next", "cut"])
MOVES = st.lists(st.tuples(KINDS, st.integers(1, 4), st.floats(0.0, 1.0)), max_size=16)


@given(MOVES)
def test_it_is_what_was_added_less_what_was_cut(moves: list[tuple[str, int, float]]) -> None:
    begin = begin_batch(0, 0, "d", prompts=1, group_size=1, turns=1000)
    (rollout,) = BatchRecord(begin, 0.0).rollouts
    entries: list[Entry] = []
    prompts = [rollout.transcript.prompt]
    for kind, count, share in moves:
        newest = [e for e in entries if e.sequence == len(prompts) - 1]
        number = len(entries)
        if kind == "cut":
            length = round(share * number)
            if length < number:  # nothing else is a cut
                rollout.cut(length)
                del prompts[entries[length].sequence + 1 :], entries[length:]
        elif kind == "next":
            if any(e.sampler != GIVEN for e in newest):
                prompts.append(pack_tokens([count] * count))
                rollout.answer(b"", over=True, prompt=prompts[-1])
        elif kind == GIVEN:
            if newest and newest[-1].sampler != GIVEN:
                entries += [Entry(number + i, GIVEN, len(prompts) - 1) for i in range(count)]
                given = pack_tokens([e.token for e in entries[number:]])
                rollout.answer(given, over=False, prompt=b"")
        else:
            entries += [Entry(number + i, kind, len(prompts) - 1) for i in range(count)]
            tokens = [e.token for e in entries[number:]]
            rollout.take_in(pack_tokens(tokens), pack_logprobs([-t for t in tokens]), kind)
        compare(rollout, entries, prompts)


def compare(rollout: Rollout, entries: list[Entry], prompts: list[bytes]) -> None:
    newest = [e for e in entries if e.sequence == len(prompts) - 1]
    sampled = [e for e in entries if e.sampler != GIVEN]
    assert bytes(rollout.transcript.tokens) == pack_tokens([e.token for e in newest])
    own = [-e.token for e in newest if e.sampler != GIVEN]
    assert bytes(rollout.transcript.logprobs) == pack_logprobs(own)
    whole = rollout.sequences
    assert (whole.num_tokens, whole.num_sampled) == (len(entries), len(sampled))
    assert rollout.transcript.room(whole.sampling) == 12 - len(own)
    assert whole.work.sequence == len(prompts) - 1 == len(rollout.results)
    assert (whole.first_prompt, rollout.transcript.prompt) == (prompts[0], prompts[-1])
    assert whole.length == len(entries) + sum(len(p) // 4 for p in prompts)
    for number, result in enumerate(rollout.results):
        own_tokens = [e.token for e in entries if e.sequence == number]
        assert unpack_tokens(result.tokens).tolist() == own_tokens
        assert (result.work.sequence, result.last) == (number, False)
    before = [None, *entries]
    turns = sum(
        entry.sampler != GIVEN
        and (last is None or last.sampler == GIVEN or last.sequence != entry.sequence)
        for last, entry in zip(before, entries, strict=False)
    )
    assert whole.num_turns == turns
    for place, entry in enumerate(entries):
        position = place - next(i for i, e in enumerate(entries) if e.sequence == entry.sequence)
        assert whole.locate(entry.sequence, position) == place
        if entry.sampler == GIVEN:
            with pytest.raises(IndexError, match="was given"):
                whole.sampler_of(place)
        else:
            assert whole.sampler_of(place) == entry.sampler
    for name in ("a", "b"):
        found = (i for i, e in enumerate(entries) if e.sampler == name)
        assert whole.first_of(name) == next(found, len(entries))
    for length in range(len(entries) + 1):
        assert whole.sampled_from(length) == sum(e.sampler != GIVEN for e in entries[length:])
