"""Routes on their way through the manager: checked, kept, moved, written down, delivered."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone
from rlboost_jax.manager.state.token_rows import MalformedBatch, TokenRows
from rlboost_jax.settings.routing import Routing
from rlboost_jax.trust.peer_limits import Meter, server_frame_bytes, trainer_queue_bytes
from tests.manager.desk import Desk
from tests.manager.fakes import (
    MAX_TOKENS,
    ROUTING,
    STOP,
    VOCAB,
    batch,
    lead,
    length,
    routes,
    settings,
    token,
)

A, B = 10, 11


def at_a(**changes: Any) -> tuple[Desk, list[m.GenerateRequest]]:
    """Batch 0 of a run with routes, at A."""
    quick = {"deterministic": False, "manager__window_initial_seconds": 1e-9, "routing": ROUTING}
    desk = Desk(settings(**{**quick, **changes}))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0, slots=8)
    desk.begin(0)
    return desk, desk.requests(A)


def whole(request: m.GenerateRequest) -> bytes:
    """The routes of a response to three prompt tokens: two of the prompt lead."""
    count = length("d", request.work.batch, request.work.sample)
    return routes(2, [token("d", request.work.batch, request.work.sample, i) for i in range(count)])


def finished(desk: Desk, requests: list[m.GenerateRequest]) -> None:
    step = desk.manager.view.batch
    assert step is not None and step.finished
    for request in requests:
        rollout = step.rollout_of(request.work.sample)
        assert rollout is not None and isinstance(rollout.result, m.RoutedRollout)
        assert rollout.result.routes == whole(request)


def test_a_response_is_delivered_with_its_routes() -> None:
    desk, requests = at_a()
    desk.tokens(A, requests)
    delivered = {r.work.sample: r for r in desk.sent(m.RoutedRollout)}
    assert {r.work.sample: whole(r) for r in requests} == {
        s: r.routes for s, r in delivered.items()
    }
    finished(desk, requests)


def test_one_that_moves_keeps_those_it_has_and_gets_only_those_of_new_tokens() -> None:
    desk, requests = at_a()
    desk.tokens(A, requests, 2)
    desk(ServerGone(A, "killed"))
    desk.join(B, 0, slots=8)
    moved = desk.requests(B)
    assert moved and all(r.response_tokens and lead(r) == 0 for r in moved)
    desk.tokens(B, moved)
    finished(desk, requests)


def test_a_killed_manager_loses_no_route() -> None:
    desk, requests = at_a()
    desk.tokens(A, requests[:3], 2)
    desk.tokens(A, requests[3:], 99)
    desk.crash(at=1.0)
    desk.open_run(reserved=False)
    desk.begin(0)
    desk.join(B, 0, slots=8)
    desk.tokens(B, desk.requests(B))
    finished(desk, requests)


@pytest.mark.parametrize("kept", [0, 1])
def test_what_is_discarded_loses_its_routes_too(kept: int) -> None:
    desk, requests = at_a()
    desk.tokens(A, requests)
    step = desk.manager.view.batch
    assert step is not None
    request = next(r for r in requests if length("d", r.work.batch, r.work.sample) > 2)
    rollout = step.rollout_of(request.work.sample)
    assert rollout is not None
    desk.manager.owners.ledger.redo(step, {rollout: kept})
    count = len(whole(request)) // ROUTING.route_bytes
    left = 2 + kept if kept else 0
    assert bytes(rollout.transcript.routes) == whole(request)[: left * ROUTING.route_bytes]
    assert len(rollout.transcript.routes) < count * ROUTING.route_bytes
    assert rollout.transcript.lead == (0 if kept else 2)


def test_what_follows_a_stop_id_is_cut_with_its_routes() -> None:
    desk, (request, *_) = at_a()
    desk.server(A, batch(0, 0, [(request.request_id, [5, STOP, 7, 8])], leads=[2]))
    (result,) = desk.sent(m.RoutedRollout)
    assert result.routes == routes(2, [5, STOP])


def changed(**fields: Any) -> Callable[[m.TokenBatch], m.TokenBatch]:
    return lambda good: msgspec.structs.replace(good, **fields)


def with_ids(*ids: int) -> Callable[[m.TokenBatch], m.TokenBatch]:
    """The first choice of the second layer, in the last route."""
    return lambda good: msgspec.structs.replace(good, routes=good.routes[:-2] + bytes(ids))


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (with_ids(0, 5), "expert 5 of 0..4"),
        (with_ids(3, 3), "chosen twice"),
        (changed(routes=b""), "0 bytes of routes, not 16"),
        (changed(leads=b""), "0 leads for 1 rows"),
        (changed(leads=m.pack_ids([3])), "16 bytes of routes, not 20"),
        (changed(leads=m.pack_ids([3]), routes=routes(3, [5, 6])), "3 routes before the tokens"),
        (changed(leads=m.pack_ids([0]), routes=routes(0, [5, 6])), "0 routes before the tokens"),
        (changed(leads=m.pack_ids([2**32 - 1])), "not 17179869188"),
    ],
)
def test_a_server_that_lies_about_routes_is_hung_up_on(lie: Any, words: str) -> None:
    desk, (request, *_) = at_a()
    good = batch(0, 0, [(request.request_id, [5, 6])], leads=[2])
    desk.server(A, lie(good))
    assert "malformed" in desk.closed()[A] and words in desk.closed()[A]
    step = desk.manager.view.batch
    assert step is not None
    kept = [rollout.transcript for rollout in step.rollouts]
    assert not any(transcript.num_tokens or transcript.routes for transcript in kept)
    desk.join(B, 0, slots=8)
    desk.tokens(B, desk.requests(B))
    assert step.finished


@pytest.mark.parametrize(
    "rows", [[(1, [5]), (1, [6])], [(1, []), (2, [5])]], ids=["named twice", "empty"]
)
def test_every_row_has_tokens_of_a_request_of_its_own(rows: list[Any]) -> None:
    with pytest.raises(MalformedBatch, match="a row that is empty or there twice"):
        TokenRows(batch(0, 0, rows, leads=[0, 0]), VOCAB, ROUTING)


def test_routes_come_with_tokens_where_they_are_replayed_and_nowhere_else() -> None:
    plain, routed = batch(0, 0, [(1, [5])]), batch(0, 0, [(1, [5])], leads=[0])
    for message, routing in ((plain, ROUTING), (routed, None)):
        with pytest.raises(MalformedBatch, match="routes"):
            TokenRows(message, VOCAB, routing)
    TokenRows(batch(0, 0, []), VOCAB, ROUTING)  # says what is in flight
    desk, requests = at_a(routing=None)
    desk.tokens(A, requests)
    results = desk.sent(m.FinishedRollout)
    assert results and {type(result) for result in results} == {m.FinishedRollout}


@pytest.mark.parametrize("num_experts", [2, 128, 256, 257, 40_000])
def test_a_route_is_as_small_as_its_ids_allow(num_experts: int) -> None:
    routing = Routing(num_layers=48, num_experts=num_experts, experts_per_token=2)
    ids = np.random.default_rng(0).integers(num_experts, size=(7, 48, 2), dtype=np.uint16)
    data = routing.pack(ids)
    assert len(data) == 7 * routing.route_bytes == 7 * 96 * (1 if num_experts <= 256 else 2)
    np.testing.assert_array_equal(routing.unpack(data), ids)
    with pytest.raises(ValueError, match=r"reshape|size"):
        routing.unpack(data[:-1] if num_experts <= 256 else data[:-2])


def test_the_longest_honest_frame_passes() -> None:
    slots, tokens = 8, 4 + MAX_TOKENS
    rows = [(i, [5] * MAX_TOKENS) for i in range(2**32 - slots, 2**32)]
    frame = m.encode(batch(2**52, 2**52, rows, in_flight=2**30, running=8, leads=[3] * slots))
    bound = server_frame_bytes(
        slots=slots, slot_tokens=tokens, max_pending=2, route_bytes=ROUTING.route_bytes
    )
    assert len(frame) <= bound < 2 * len(frame) + 8_192


def test_routes_take_nothing_from_what_else_may_be_sent() -> None:
    """A step that fits the trainer's queue does so with routes; a fast server is no flood."""
    tokens = trainer_queue_bytes() // 8
    assert tokens * (8 + 384) <= trainer_queue_bytes(384)
    meter, second = Meter(route_bytes=384), 50_000 * (14 + 384)
    assert not any(meter.objection(second, float(now)) for now in range(60))
    assert any(map(Meter().objection, [second] * 60, range(60))), "without routes it would be one"
