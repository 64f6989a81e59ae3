"""A loop in the manner of JetStream's gives the engine's tokens."""

from collections.abc import Callable

import numpy as np
import pytest

from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.jetstream import SlotEngine
from rlboost_jax.engine.pages import OutOfPages
from rlboost_jax.engine.requests import RequestRejected
from rlboost_jax.messages import GenerateRequest

Build = Callable[..., Engine]
Requests = Callable[..., GenerateRequest]
Drain = Callable[[Engine], dict[int, tuple[list[int], list[int]]]]


def test_a_jetstream_loop_gives_the_engines_tokens(
    build_engine: Build, request_of: Requests, drain: Drain
) -> None:
    engine = build_engine()
    random = np.random.default_rng(4)
    backlog = [request_of(i, random.integers(0, 37, 1 + 2 * i), group=i) for i in range(9)]
    engine.submit(backlog)
    expected = {i: tokens for i, (tokens, _) in drain(engine).items()}

    verbs, stops = SlotEngine(engine), backlog[0].sampling.stop_ids
    state, owner, responses = verbs.init_decode_state(), {}, {}
    while backlog or owner:
        for slot in set(range(verbs.max_concurrent_decodes)) - set(owner):
            if backlog:
                request = backlog.pop(0)
                prefix, first = verbs.prefill(request)
                state = verbs.insert(prefix, state, slot=slot)
                owner[slot] = request
                responses[request.request_id] = first.get_result_at_slot(0).tokens[0].tolist()
        state, results = verbs.generate(state)
        for slot, request in list(owner.items()):
            response, result = responses[request.request_id], results.get_result_at_slot(slot)
            response += result.tokens[0][result.valid[0] > 0].tolist()
            if response[-1] in stops or len(response) == request.sampling.max_tokens:
                state = verbs.free_resource(state, slot=slot)
                del owner[slot]
    assert responses == expected


def test_a_group_is_inserted_in_bulk(
    build_engine: Build, request_of: Requests, drain: Drain
) -> None:
    engine = build_engine()
    requests = [request_of(i, [3, 1, 4, 1, 5, 9], stop_ids=(), max_tokens=4) for i in range(4)]
    engine.submit(requests)
    expected = drain(engine)

    verbs = SlotEngine(engine)
    prefix, first = verbs.prefill(requests[0])
    state = verbs.init_decode_state()
    state = verbs.bulk_insert(prefix, state, slots=[5, 0, 2, 3], siblings=requests[1:])
    rows = {5: [first.get_result_at_slot(0)], 0: [], 2: [], 3: []}
    for _ in range(4):
        state, results = verbs.generate(state)
        assert results.data.shape == (6, 3)
        for slot, row in rows.items():
            row.append(results.get_result_at_slot(slot))
        assert results.get_result_at_slot(1).valid.item() == 0
    for slot, request in zip((5, 0, 2, 3), requests, strict=True):
        valid = [data for data in rows[slot] if data.valid.item()]
        tokens = [data.tokens.item() for data in valid]
        bits = [data.logprobs.view(np.int32).item() for data in valid]
        assert (tokens, bits) == expected[request.request_id]
        assert [data.lengths.item() for data in valid] == [1, 2, 3, 4]
    # 6 prompt tokens on pages of 4: one shared page, and for each the last one and a half.
    assert verbs._pool.num_held == 1 + 4 * 2
    for slot in rows:
        state = verbs.free_resource(state, slot=slot)
    assert verbs._pool.num_held == 0 and not state.slots


def test_misuse_is_an_error(build_engine: Build, request_of: Requests) -> None:
    engine = build_engine(num_pages=11)
    verbs = SlotEngine(engine)
    state = verbs.init_decode_state()
    prefix, _ = verbs.prefill(request_of(1, list(range(20))))
    with pytest.raises(ValueError, match="slot 6 is taken or not one of 0 to 5"):
        verbs.insert(prefix, state, slot=6)
    state = verbs.insert(prefix, state, slot=0)
    with pytest.raises(ValueError, match="slot 0 is taken"):
        verbs.insert(prefix, state, slot=0)
    with pytest.raises(ValueError, match="slot 3 is empty; taken are"):
        verbs.free_resource(state, slot=3)
    other, _ = verbs.prefill(request_of(2, list(range(16)), group=1))
    with pytest.raises(OutOfPages, match=r"4 pages needed, 2 of 11 free; raise engine.num_pages"):
        verbs.prefill(request_of(3, list(range(15))))
    verbs.discard(other)
    with pytest.raises(ValueError, match="request 4 is no fresh sibling"):
        verbs.bulk_insert(prefix, state, slots=[1, 2], siblings=[request_of(4, [1])])
    with pytest.raises(RequestRejected, match="vocab_size"):
        verbs.prefill(request_of(5, [99]))
    engine.submit([request_of(6, [1])])
    with pytest.raises(RequestRejected, match="without rollouts"):
        SlotEngine(engine)
    engine.release([6])


def test_the_engine_forgets_what_the_verbs_overwrote(
    build_engine: Build, request_of: Requests, drain: Drain
) -> None:
    engine = build_engine()
    request = request_of(1, range(20), stop_ids=(), max_tokens=20)
    engine.submit([request])
    expected = drain(engine)
    verbs = SlotEngine(engine)
    for i in range(6):  # on pages of the first rollout
        verbs.prefill(request_of(i, range(20, 0, -1), group=i))
    engine.submit([request])
    assert drain(engine) == expected


def test_no_page_is_lost_where_a_group_does_not_fit(
    build_engine: Build, request_of: Requests
) -> None:
    engine = build_engine(num_pages=11)
    verbs = SlotEngine(engine)
    requests = [request_of(i, range(20)) for i in range(5)]
    prefix, _ = verbs.prefill(requests[0])  # 5 pages
    other, _ = verbs.prefill(request_of(9, range(12), group=1))  # 3
    with pytest.raises(OutOfPages, match="4 pages needed, 3 of 11 free"):
        verbs.bulk_insert(
            prefix, verbs.init_decode_state(), slots=[0, 1, 2, 3, 4], siblings=requests[1:]
        )
    verbs.discard(prefix)
    verbs.discard(other)
    verbs.prefill(request_of(10, [7] * 40, max_tokens=4))  # 10 of the 11: all are free again
