"""The tokens of a sequence, against a list with one entry for each."""

import itertools
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.messages import pack_logprobs, pack_tokens
from rlboost_jax.sequences.identities import Version
from rlboost_jax.sequences.sequence import Sequence, runs_after_prompt
from rlboost_jax.sequences.transcript import GIVEN, Transcript

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
    transcript = Transcript(pack_tokens(range(PROMPT)))
    entries: list[Entry] = []
    for kind, count, share in moves:
        number = len(entries)
        if kind == "cut":
            length = round(share * number)
            transcript.cut(length)
            entries = entries[:length]
        elif kind == GIVEN:
            if not entries or entries[-1].sampler == GIVEN:
                continue
            entries += [Entry(number + i, GIVEN) for i in range(count)]
            transcript.give(pack_tokens([e.token for e in entries[number:]]))
        else:
            new = [Entry(number + i, kind, -(number + i) / 8) for i in range(count)]
            lead = transcript.lead
            entries += new
            # A route is the number of its position: those before each token, and the lead's.
            start = PROMPT + number - lead - 1
            routes = bytes(range(start, start + lead + count))
            values = [e.logprob for e in new]
            tokens = pack_tokens([e.token for e in new])
            transcript.append(tokens, pack_logprobs(values), kind, routes)
        _compare(transcript, entries)


def _compare(transcript: Transcript, entries: list[Entry]) -> None:
    sampled = [e for e in entries if e.sampler != GIVEN]
    assert bytes(transcript.tokens) == pack_tokens([e.token for e in entries])
    assert bytes(transcript.logprobs) == pack_logprobs([e.logprob for e in sampled])
    assert (transcript.num_tokens, transcript.num_sampled) == (len(entries), len(sampled))
    assert transcript.length == PROMPT + len(entries)
    last = max((i for i, e in enumerate(entries) if e.sampler != GIVEN), default=-PROMPT)
    assert list(transcript.routes) == list(range(PROMPT + last))
    origins = [e.sampler == GIVEN for e in entries]
    runs = [0]
    for i, origin in enumerate(origins):
        if i and origin != origins[i - 1]:
            runs.append(0)
        runs[-1] += 1
    assert transcript.runs == (tuple(runs) if any(origins) else ())
    assert transcript.samplers == tuple(dict.fromkeys(e.sampler for e in sampled))
    assert transcript.turn == len(runs) // 2
    _compare_parts(transcript, entries)


def _compare_parts(transcript: Transcript, entries: list[Entry]) -> None:
    """Its turns, any stretch of it, and others made of what messages say of it."""
    tokens, logprobs = bytes(transcript.tokens), bytes(transcript.logprobs)
    runs = [list(each) for _, each in itertools.groupby(entries, lambda e: e.sampler == GIVEN)]
    answers = [pack_tokens([e.token for e in run]) for run in runs[1::2]]
    assert list(transcript.turns()) == [
        (
            pack_tokens([e.token for e in run]),
            pack_logprobs([e.logprob for e in run]),
            answers[turn] if turn < len(answers) else None,
        )
        for turn, run in enumerate(runs[::2])
    ]
    every = [*range(PROMPT), *(e.token for e in entries)]
    for start, end in itertools.combinations(range(0, len(every) + 1, 2), 2):
        assert transcript.between(start, end) == pack_tokens(every[start:end])
    copy = transcript.copy()
    assert copy == transcript
    copy.append(pack_tokens([0]))
    assert copy != transcript and bytes(transcript.tokens) == tokens, "it shares nothing"
    counts = runs_after_prompt(transcript.runs, len(entries))
    again = Transcript.from_runs(transcript.prompt, tokens, counts, logprobs)
    assert list(again.turns()) == list(transcript.turns())
    if not transcript.newest_given:
        counted = ((Version(0), transcript.num_sampled),) if entries else ()
        sequence = Sequence(
            tokens=np.array(every, np.int32),
            runs=(PROMPT, *counts),
            logprobs=np.frombuffer(logprobs, "<f4"),
            versions=counted,
        )
        assert Transcript.from_sequence(sequence) == again
