"""Decode steps launched before those in front of them were read: nothing of it can show."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.compiles import num_compiles
from rlboost_jax.engine.dispatches import EngineDispatch
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.engine_rollouts import new_rollout
from rlboost_jax.engine.requests import EngineBusy
from rlboost_jax.messages import GenerateRequest, pack_tokens

Build = Callable[..., Engine]
Requests = Callable[..., GenerateRequest]
Rollouts = dict[int, tuple[list[int], list[int]]]
Drain = Callable[[Engine], Rollouts]

pytestmark = pytest.mark.optimized(False)  # what is sampled is compared with itself


@pytest.fixture
def requests(request_of: Requests) -> list[GenerateRequest]:
    random = np.random.default_rng(5)
    return [
        request_of(i, random.integers(0, 37, 1 + 3 * (i % 5)).tolist(), group=i) for i in range(12)
    ]


def collect(dispatch: EngineDispatch, rollouts: Rollouts) -> None:
    ends = np.cumsum(dispatch.counts, dtype=np.int64)
    bits = dispatch.logprobs.view(np.int32)
    for i, start, end in zip(dispatch.request_ids, ends - dispatch.counts, ends, strict=True):
        tokens, logprobs = rollouts.setdefault(int(i), ([], []))
        tokens += dispatch.tokens[start:end].tolist()
        logprobs += bits[start:end].tolist()


def test_following_cannot_show(
    build_engine: Build, drain: Drain, requests: list[GenerateRequest]
) -> None:
    """Not even where the next decode steps run over fewer rows."""
    engine = build_engine(slots=24, num_pages=40)
    engine.submit(requests)
    expected = drain(engine)  # one dispatch at a time
    rollouts: Rollouts = {}
    engine.submit(requests)
    before = num_compiles()
    for dispatch in engine.run():
        collect(dispatch, rollouts)
    assert rollouts == expected
    assert num_compiles() == before
    assert engine._scheduler.pool.num_held == 0 and engine.in_flight == 0


def test_following_cannot_show_when_rollouts_come_and_go(
    build_engine: Build, drain: Drain, requests: list[GenerateRequest]
) -> None:
    engine = build_engine()
    engine.submit(requests)
    expected = drain(engine)
    followed = passed_over = left = 0
    for seed in range(6):
        random = np.random.default_rng(seed)
        rollouts: Rollouts = {}
        away = list(requests)
        while away or engine.held():
            coming = [away.pop() for _ in range(min(len(away), random.integers(4)))]
            engine.submit([continued(request, rollouts) for request in coming])
            more = engine.begin()
            while more:
                more = engine.follow() if random.random() < 0.8 else 0
                followed += more > 0
                most, first = engine.in_flight, engine.finish()
                collect(first, rollouts)
                # A bound, and no more than the device can still be busy with.
                assert len(first.tokens) + engine.in_flight <= most
                assert engine.in_flight <= more
                passed_over += engine.in_flight < more
            if engine.held() and random.random() < 0.4:
                leaving = engine.release([int(random.choice(engine.held()))])
                away += [request for request in requests if request.request_id in leaving]
                left += 1
        assert rollouts == expected
    assert followed > 20 and passed_over > 5 and left > 5


def continued(request: GenerateRequest, rollouts: Rollouts) -> GenerateRequest:
    tokens, _ = rollouts.get(request.request_id, ([], []))
    return msgspec.structs.replace(request, response_tokens=pack_tokens(tokens))


def test_what_stops_yields_nothing_more(
    build_engine: Build, drain: Drain, request_of: Requests
) -> None:
    engine = build_engine()
    engine.submit([request_of(1, [7, 1], stop_ids=())])
    tokens, _ = drain(engine)[1]
    stop = next(token for token in tokens[1:5] if token != tokens[0])
    engine.submit([request_of(1, [7, 1], stop_ids=(stop,))])
    assert engine.begin() == 1
    engine.finish()
    assert engine.begin() == engine.follow() == 4
    first = engine.finish()
    assert first.tokens.tolist() == tokens[1 : 1 + len(first.tokens)]
    assert first.tokens[-1] == stop and first.finished == (1,)
    assert engine.in_flight == 0 and engine.held() == ()
    second = engine.finish()
    assert len(second.tokens) == len(second.counts) == 0 and second.finished == ()
    assert engine.begin() == 0


def test_who_has_to_wait_and_who_must_not(build_engine: Build, request_of: Requests) -> None:
    engine = build_engine()
    with pytest.raises(EngineBusy, match="follow came with 0 programs in flight"):
        engine.follow()
    engine.submit([request_of(i, [7, i], group=i, stop_ids=()) for i in range(6)])
    assert engine.begin() == 6 and engine.in_flight == 6
    assert engine.follow() == 0  # a mixed step
    engine.finish()
    assert engine.begin() == engine.follow() == 6 * 4
    assert engine.in_flight == 2 * 6 * 4
    for call in (engine.follow, engine.begin, lambda: engine.release([1])):
        with pytest.raises(EngineBusy):
            call()
    engine.submit([request_of(6, [1, 2], group=6)])  # all slots are taken
    assert len(engine.finish().tokens) == engine.in_flight == 6 * 4
    assert engine.follow() == 0
    engine.finish()
    assert engine.release(engine.held()) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("stopped", [False, True])
def test_decode_steps_begin_with_the_ends_of_others_or_touch_nothing(
    build_engine: Build, request_of: Requests, stopped: bool
) -> None:
    engine = build_engine()
    programs, layout = engine.programs, engine.layout
    prompt = [3, 1, 4, 1, 5]
    rollout = new_rollout(request_of(1, prompt, stop_ids=()), layout, 0)
    rollout.take_pages([9, 2, 5])

    def decode(record: Any, ends: Any) -> tuple[Any, Any, list[Any]]:
        packed = step_inputs.pack_decode(layout, [rollout.decode_record(0), record], 3)
        leaves = engine.parameters.leaves
        engine.device_state.pools, outputs, ends = programs.decode(
            leaves, engine.device_state.pools, packed, ends
        )
        return (
            np.asarray(outputs.sampled)[:, :3, 1],
            ends,
            [np.array(pool) for pool in engine.device_state.pools],
        )

    width = len(engine.device_state.ends)
    expected, ends, pools = decode(rollout.decode_record(3).copy(), engine.device_state.ends)
    assert ends.tolist()[1] == expected[0, -1]
    known = np.full(width, -1, np.int32)
    known[4] = -1 if stopped else prompt[-1]
    start = len(prompt) - 1
    got, ends, after = decode(
        rollout.following_record(start, 3, 4).copy(), engine.device_state.ends.at[:].set(known)
    )
    if stopped:
        assert (got[0] == -1).all() and ends.tolist()[1] == -1
    else:
        np.testing.assert_array_equal(got, expected)
    for a, b in zip(pools, after, strict=True):
        np.testing.assert_array_equal(a, b)
