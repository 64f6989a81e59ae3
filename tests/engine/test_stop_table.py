"""Stop strings in an engine: the same bits up to the same end, whatever a dispatch has."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from rlboost_jax.data.stop_strings import StopStrings
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.jetstream import SlotEngine
from rlboost_jax.engine.requests import RequestRejected
from rlboost_jax.messages import GenerateRequest, pack_tokens

pytestmark = pytest.mark.optimized(False)  # what is sampled is compared with itself

Build = Callable[..., Engine]
Requests = Callable[..., GenerateRequest]
Rollouts = dict[int, tuple[list[int], list[int]]]

PIECES = tuple(bytes([97 + token % 5] * (1 + token % 2)) for token in range(37))
PROMPTS = ([7], [1, 2, 3], [30, 4, 4, 9, 8, 2, 2], [11, 12], [3, 3], [20])


def text_of(tokens: list[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode()


@pytest.fixture
def plain(build_engine: Build, request_of: Requests, drain: Any) -> Rollouts:
    """Responses to all prompts that nothing ends."""
    engine = build_engine()
    engine.submit([request_of(i, p, group=i, stop_ids=()) for i, p in enumerate(PROMPTS)])
    found: Rollouts = drain(engine)
    return found


@pytest.fixture
def strings(plain: Rollouts) -> tuple[str, ...]:
    """Some that begin and end within tokens, at places that no dispatch of any size ends with."""
    return tuple(text_of(plain[i][0])[place : place + 4] for i, place in ((0, 6), (2, 11), (3, 1)))


@pytest.fixture
def expected(plain: Rollouts, strings: tuple[str, ...]) -> Rollouts:
    """By a search in the text of all that was sampled."""
    cut: Rollouts = {}
    for request_id, (tokens, bits) in plain.items():
        ends = (n for n in range(1, 25) if any(s in text_of(tokens[:n]) for s in strings))
        end = next(ends, len(tokens))
        cut[request_id] = tokens[:end], bits[:end]
    assert 3 <= sum(len(tokens) < 24 for tokens, _ in cut.values()) < len(PROMPTS)
    return cut


def requests_with(request_of: Requests, strings: tuple[str, ...]) -> list[GenerateRequest]:
    stops = StopStrings(strings, PIECES).table
    return [
        request_of(i, prompt, group=i, stop_ids=(), stops=stops) for i, prompt in enumerate(PROMPTS)
    ]


def collected(engine: Engine) -> tuple[Rollouts, int]:
    """What an engine yields until it holds nothing, and how many tokens it discards."""
    rollouts: Rollouts = {}
    discarded = 0
    for dispatch in engine.run():
        discarded += dispatch.discarded
        ends = np.cumsum(dispatch.counts, dtype=np.int64)
        bits = dispatch.logprobs.view(np.int32)
        for i, start, end in zip(dispatch.request_ids, ends - dispatch.counts, ends, strict=True):
            tokens, own = rollouts.setdefault(int(i), ([], []))
            tokens += dispatch.tokens[start:end].tolist()
            own += bits[start:end].tolist()
    assert engine.in_flight == 0 and not engine.held()
    pool = engine._scheduler.pool
    assert pool.num_free == pool.num_pages, "pages leaked"
    return rollouts, discarded


@pytest.mark.parametrize("steps", [1, 4, 8])
def test_any_number_of_tokens_a_dispatch(
    build_engine: Build,
    request_of: Requests,
    strings: tuple[str, ...],
    expected: Rollouts,
    steps: int,
) -> None:
    """Also where the next dispatch is under way before the end is seen."""
    engine = build_engine(steps_per_dispatch=steps)
    engine.submit(requests_with(request_of, strings))
    rollouts, discarded = collected(engine)
    assert rollouts == expected
    assert discarded > 0, "the device goes on for a while"
    engine.submit(requests_with(request_of, strings))
    assert collected(engine)[0] == expected, "on pages that were written behind the end"


def test_after_a_migration_at_any_place(
    build_engine: Build, request_of: Requests, strings: tuple[str, ...], expected: Rollouts
) -> None:
    """What completes a string may have been sampled elsewhere, but for its last token."""
    engine = build_engine()
    requests = requests_with(request_of, strings)
    for known in range(1, 24):
        engine.submit(
            [
                msgspec.structs.replace(
                    request, response_tokens=pack_tokens(expected[request.request_id][0][:known])
                )
                for request in requests
                if known < len(expected[request.request_id][0])
            ]
        )
        for request_id, (tokens, bits) in collected(engine)[0].items():
            whole = expected[request_id]
            assert (tokens, bits) == (whole[0][known:], whole[1][known:])
    over = msgspec.structs.replace(requests[0], response_tokens=pack_tokens(expected[0][0]))
    with pytest.raises(RequestRejected, match="has a stop string in its response"):
        engine.submit([over])
    behind = msgspec.structs.replace(requests[0], response_tokens=pack_tokens([*expected[0][0], 1]))
    with pytest.raises(RequestRejected, match="has a stop string in its response"):
        engine.submit([behind])


def test_a_turn_begins_without_what_was_read_before(
    build_engine: Build, request_of: Requests, strings: tuple[str, ...], plain: Rollouts
) -> None:
    """Neither the prompt nor what was given is the beginning of a string."""
    stops = StopStrings(strings, PIECES).table
    end = list(range(37))
    first = next(t for t in end if PIECES[t].decode() and strings[0].startswith(text_of([t])))
    rest = plain[0][0]
    engine = build_engine()
    request = request_of(5, [4, first], [*rest[:2], first], runs=(2, 1), stop_ids=(), stops=stops)
    engine.submit([request])
    engine.submit(
        [
            msgspec.structs.replace(
                request, request_id=6, sampling=msgspec.structs.replace(request.sampling, stops=b"")
            )
        ]
    )
    rollouts, _ = collected(engine)
    assert rollouts[5][0] == rollouts[6][0][: len(rollouts[5][0])]
    tokens = rollouts[6][0]
    ends = (n for n in range(1, len(tokens) + 1) if any(s in text_of(tokens[:n]) for s in strings))
    assert len(rollouts[5][0]) == next(ends, len(tokens))


def test_the_verbs_of_jetstream(
    build_engine: Build, request_of: Requests, strings: tuple[str, ...], expected: Rollouts
) -> None:
    verbs = SlotEngine(build_engine())
    request = requests_with(request_of, strings)[0]
    prefix, first = verbs.prefill(request)
    state = verbs.insert(prefix, verbs.init_decode_state(), slot=0)
    tokens = [first.get_result_at_slot(0).tokens.item()]
    while True:
        state, results = verbs.generate(state)
        data = results.get_result_at_slot(0)
        if not data.valid.item():
            break
        tokens.append(data.tokens.item())
    assert tokens == expected[0][0]
    verbs.free_resource(state, slot=0)
