"""The tokens of a response, against a list with one entry for each."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.manager.state.transcript import GIVEN
from rlboost_jax.messages import pack_logprobs, pack_tokens
from tests.manager.fakes import begin_batch

PROMPT = 3


@dataclass
class Entry:
    token: int
    sampler: str
    logprob: float = 0.0


# The sampling instance, and how many tokens; a length to cut at is drawn as a share.
MOVES = st.lists(
    st.tuples(st.sampled_from(["a", "b", GIVEN, "cut"]), st.integers(1, 4), st.floats(0.0, 1.0)),
    max_size=12,
)


@given(MOVES)
def test_it_is_what_was_added_less_what_was_cut(moves: list[tuple[str, int, float]]) -> None:
    begin = begin_batch(0, 0, "d", prompts=1, group_size=1, turns=100)
    (rollout,) = BatchRecord(begin, 0.0).rollouts
    entries: list[Entry] = []
    for kind, count, share in moves:
        number = len(entries)
        if kind == "cut":
            length = round(share * number)
            rollout.cut(length)
            entries = entries[:length]
        elif kind == GIVEN:
            if not entries or entries[-1].sampler == GIVEN:
                continue
            entries += [Entry(number + i, GIVEN) for i in range(count)]
            rollout.answer(pack_tokens([e.token for e in entries[number:]]))
        else:
            new = [Entry(number + i, kind, -(number + i) / 8) for i in range(count)]
            lead = rollout.lead
            entries += new
            # A route is the number of its position: those before each token, and the lead's.
            start = PROMPT + number - lead - 1
            routes = bytes(range(start, start + lead + count))
            values = [e.logprob for e in new]
            tokens = pack_tokens([e.token for e in new])
            rollout.take_in(tokens, pack_logprobs(values), kind, routes)
        _compare(rollout, entries)
    sampled = [e for e in entries if e.sampler != GIVEN]
    if sampled:
        rollout.finish()
        rollout.cut(len(entries))  # which gives all back
        _compare(rollout, entries)


def _compare(rollout: Rollout, entries: list[Entry]) -> None:
    sampled = [e for e in entries if e.sampler != GIVEN]
    assert bytes(rollout.tokens) == pack_tokens([e.token for e in entries])
    assert bytes(rollout.logprobs) == pack_logprobs([e.logprob for e in sampled])
    assert (rollout.num_tokens, rollout.num_sampled) == (len(entries), len(sampled))
    assert rollout.length == PROMPT + len(entries)
    last = max((i for i, e in enumerate(entries) if e.sampler != GIVEN), default=-PROMPT)
    assert list(rollout.routes) == list(range(PROMPT + last))
    origins = [e.sampler == GIVEN for e in entries]
    runs = [0]
    for i, origin in enumerate(origins):
        if i and origin != origins[i - 1]:
            runs.append(0)
        runs[-1] += 1
    assert rollout.runs == (tuple(runs) if any(origins) else ())
    for i, entry in enumerate(entries):
        if entry.sampler == GIVEN:
            with pytest.raises(IndexError, match="was given"):
                rollout.sampler_of(i)
        else:
            assert rollout.sampler_of(i) == entry.sampler
    for name in ("a", "b"):
        found = (i for i, e in enumerate(entries) if e.sampler == name)
        assert rollout.first_of(name) == next(found, len(entries))
    for length in range(len(entries) + 1):
        behind = sum(e.sampler != GIVEN for e in entries[length:])
        assert rollout.sampled_from(length) == behind
