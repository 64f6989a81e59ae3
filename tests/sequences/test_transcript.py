"""The tokens of a sequence, against a list with one entry for each."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.messages import pack_logprobs, pack_tokens
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
