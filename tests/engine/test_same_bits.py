"""The same bits whatever the companions, slots, pages, chunks, evictions and migrations."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import GenerateRequest, pack_tokens, unpack_tokens

Build = Callable[..., Engine]
Rollouts = dict[int, tuple[list[int], list[int]]]
GROUP_SIZE = 4


@pytest.fixture
def requests(request_of: Callable[..., GenerateRequest]) -> list[GenerateRequest]:
    random = np.random.default_rng(8)
    prompts = [random.integers(0, 37, n).tolist() for n in (1, 3, 4, 8, 13, 20)]
    return [
        request_of(GROUP_SIZE * group + member, prompt, group=group)
        for group, prompt in enumerate(prompts)
        for member in range(GROUP_SIZE)
    ]


@pytest.fixture
def alone(
    build_engine: Build, drain: Callable[[Engine], Rollouts], requests: list[GenerateRequest]
) -> Rollouts:
    """Each request by itself, one token a dispatch: the simplest schedule there is."""
    engine = build_engine(slots=1, steps_per_dispatch=1)
    rollouts: Rollouts = {}
    for request in requests:
        engine.submit([request])
        rollouts |= drain(engine)
    assert len({len(tokens) for tokens, _ in rollouts.values()}) > 5
    return rollouts


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_pages": 11},  # one longest rollout's worth for six slots
        {"slots": 24, "num_pages": 40},  # all at once
        {"steps_per_dispatch": 7, "slot_tokens": 180},  # wider page tables
        {"slots": 4, "drafters": ("siblings", "prompt")},
    ],
)
def test_schedules_cannot_show(
    build_engine: Build,
    drain: Callable[[Engine], Rollouts],
    requests: list[GenerateRequest],
    alone: Rollouts,
    settings: dict[str, Any],
) -> None:
    engine = build_engine(**settings)
    engine.submit(requests)
    assert drain(engine) == alone
    order = np.random.default_rng(1).permutation(len(requests))
    engine.submit([requests[i] for i in order])
    assert drain(engine) == alone


def test_migration_cannot_show(
    build_engine: Build,
    dispatch: Callable[[Engine, Rollouts], int],
    requests: list[GenerateRequest],
    alone: Rollouts,
) -> None:
    """Rollouts arrive, move and are lost with up to a dispatch of tokens, at random times."""
    engines = [build_engine(), build_engine(num_pages=11), build_engine(slots=24, num_pages=40)]
    engines.append(build_engine(slots=4, drafters=("siblings", "prompt")))
    moves = lost = 0
    for seed in range(6):
        random = np.random.default_rng(seed)
        rollouts: Rollouts = {}
        waiting = [requests[i] for i in random.permutation(len(requests))]
        while waiting or any(engine.held() for engine in engines):
            engine = engines[random.integers(len(engines))]
            for _ in range(random.integers(4)):
                if waiting:
                    engine.submit([continued(waiting.pop(), rollouts)])
            kept = {i: (list(tokens), list(bits)) for i, (tokens, bits) in rollouts.items()}
            lost_here = engine.held()
            dispatch(engine, rollouts)
            if random.random() < 0.05:  # the engine is lost before it could send these tokens
                rollouts = {i: kept[i] for i in kept}
                engine.release(engine.held())
                waiting += [r for r in requests if r.request_id in lost_here]
                lost += 1
            elif engine.held() and random.random() < 0.3:
                count = random.integers(1, len(engine.held()) + 1)
                leaving = random.choice(engine.held(), count, replace=False).tolist()
                released = engine.release(leaving)
                waiting += [r for r in requests if r.request_id in released]
                moves += len(released)
        assert rollouts == alone
    assert moves > 30 and lost > 2


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_fresh_engine_goes_on_after_any_number_of_tokens(
    build_engine: Build,
    drain: Callable[[Engine], Rollouts],
    requests: list[GenerateRequest],
    alone: Rollouts,
    cut: int,
) -> None:
    """Re-prefill of prompt and response tells nothing from decoding them."""
    engine = build_engine()
    cuts = {i: tokens[: cut * len(tokens) // 9] for i, (tokens, _) in alone.items()}
    engine.submit(
        [
            msgspec.structs.replace(r, response_tokens=pack_tokens(cuts[r.request_id]))
            for r in requests
        ]
    )
    for request_id, (tokens, bits) in drain(engine).items():
        done = len(cuts[request_id])
        assert (tokens, bits) == (alone[request_id][0][done:], alone[request_id][1][done:])


def test_sharing_a_prompt_saves_pages_and_no_bit(
    build_engine: Build,
    dispatch: Callable[[Engine, Rollouts], int],
    drain: Callable[[Engine], Rollouts],
    request_of: Callable[..., GenerateRequest],
) -> None:
    engine = build_engine()
    prompt = np.random.default_rng(2).integers(0, 37, 19).tolist()

    def pages_and_rollouts(groups: Any) -> tuple[int, Rollouts]:
        engine.submit([request_of(i, prompt, group=g, stop_ids=()) for i, g in enumerate(groups)])
        rollouts: Rollouts = {}
        while len(rollouts) < 4:
            dispatch(engine, rollouts)
        held = engine._scheduler.pool.num_held
        for request_id, (tokens, bits) in drain(engine).items():
            rollouts[request_id][0].extend(tokens)
            rollouts[request_id][1].extend(bits)
        return held, rollouts

    apart, expected = pages_and_rollouts(range(4))  # four groups of one
    together, rollouts = pages_and_rollouts([0] * 4)
    assert rollouts == expected
    # 19 prompt tokens on pages of 4: three siblings hold four full pages by reference. Those
    # of the group have decoded for one dispatch more by the time that all have tokens.
    assert apart - together >= 3 * 4 - 4


def named(request: GenerateRequest, request_id: int | None = None, **changes: Any):
    """The same for another work."""
    work = msgspec.structs.replace(request.work, **changes)
    return msgspec.structs.replace(request, work=work, request_id=request_id or request.request_id)


def test_the_noise_names_the_sample_and_not_the_request(
    build_engine: Build,
    drain: Callable[[Engine], Rollouts],
    request_of: Callable[..., GenerateRequest],
) -> None:
    engine = build_engine()
    first = request_of(1, [1, 2, 3])
    engine.submit([first, msgspec.structs.replace(first, request_id=2)])
    rollouts = drain(engine)
    assert rollouts[1] == rollouts[2]
    others = [
        named(first, seed=12),
        named(first, batch=4, request_id=2),
        named(first, sample=2, request_id=3),
        named(first, sequence=1, request_id=4),
    ]
    engine.submit(others)
    different = {tuple(tokens) for tokens, _ in drain(engine).values()}
    assert len(different) == 4 and tuple(rollouts[1][0]) not in different


def continued(request: GenerateRequest, rollouts: Rollouts) -> GenerateRequest:
    """The request with the tokens that have arrived so far."""
    assert len(unpack_tokens(request.response_tokens)) == 0
    tokens, _ = rollouts.get(request.request_id, ([], []))
    return msgspec.structs.replace(request, response_tokens=pack_tokens(tokens))
