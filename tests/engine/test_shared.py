"""An engine that shrinks and grows between two programs: the same bits, and memory that goes."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import msgspec
import numpy as np
import pytest

from rlboost_jax.engine.compiles import num_compiles
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.program_plans import ProgramAllowance
from rlboost_jax.engine.requests import EngineBusy
from rlboost_jax.engine.shared import SharedEngine, pool_sizes
from rlboost_jax.engine.step_inputs import PAGES
from rlboost_jax.messages import GenerateRequest, pack_tokens
from rlboost_jax.sequences.identities import Version
from tests.engine.conftest import CONFIG, MODEL, SLOT_TOKENS

pytestmark = pytest.mark.optimized(False)  # what is sampled is compared with itself

Rollouts = dict[int, tuple[list[int], list[int]]]
GROUP_SIZE = 3


@pytest.fixture(scope="module")
def warm(params: dict[str, Any]) -> SharedEngine:
    engine = SharedEngine(MODEL, CONFIG, slot_tokens=SLOT_TOKENS, truncated_sampling=False)
    engine.load(params, Version(1))
    engine.warm_up()
    return engine


@pytest.fixture
def engine(warm: SharedEngine) -> Iterator[SharedEngine]:
    """As large as it was made, and without rollouts."""
    warm.allow(None)
    warm.release(warm.held())
    warm.resize(warm.slots, warm.pool_sizes[0])
    yield warm


@pytest.fixture
def requests(request_of: Callable[..., GenerateRequest]) -> list[GenerateRequest]:
    random = np.random.default_rng(8)
    prompts = [random.integers(0, 37, n).tolist() for n in (1, 4, 8, 13, 20)]
    return [
        request_of(GROUP_SIZE * group + member, prompt, group=group)
        for group, prompt in enumerate(prompts)
        for member in range(GROUP_SIZE)
    ]


@pytest.fixture
def alone(
    build_engine: Callable[..., Engine],
    drain: Callable[[Engine], Rollouts],
    requests: list[GenerateRequest],
) -> Rollouts:
    engine = build_engine(slots=1, steps_per_dispatch=1)
    rollouts: Rollouts = {}
    for request in requests:
        engine.submit([request])
        rollouts |= drain(engine)
    return rollouts


def pages_are_accounted_for(engine: SharedEngine) -> None:
    """Each page is free or held, by those that say so."""
    scheduler = engine._scheduler
    pool = scheduler.pool
    holders = [0] * engine.num_pages
    for rollout in scheduler.running:
        assert rollout.record[PAGES : PAGES + len(rollout.pages)].tolist() == rollout.pages
        for page in rollout.pages:
            holders[page] += 1
    for pages in scheduler.prompts._pages.values():
        for page in pages:
            holders[page] += 1
    assert [pool.holders(page) for page in range(engine.num_pages)] == holders
    assert pool.num_pages == engine.num_pages and pool.num_free == holders.count(0)


def continued(request: GenerateRequest, rollouts: Rollouts) -> GenerateRequest:
    tokens, _ = rollouts.get(request.request_id, ([], []))
    return msgspec.structs.replace(request, response_tokens=pack_tokens(tokens))


@pytest.mark.parametrize("seed", range(4))
def test_sizes_that_change_all_the_time_cannot_show(
    engine: SharedEngine,
    dispatch: Callable[[Engine, Rollouts], int],
    requests: list[GenerateRequest],
    alone: Rollouts,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    by_id = {request.request_id: request for request in requests}
    rollouts: Rollouts = {}
    waiting = [requests[i] for i in random.permutation(len(requests))]
    before, moved, handed_back, seen = num_compiles(), 0, 0, set()
    while waiting or engine.held():
        for _ in range(random.integers(4)):
            if waiting and engine.slots_left:
                engine.submit([continued(waiting.pop(), rollouts)])
        dispatch(engine, rollouts)
        if random.random() < 0.4:
            slots = int(random.integers(0, engine.slots + 1))
            resized = engine.resize(slots, int(random.integers(0, engine.pool_sizes[0] + 8)))
            waiting += [by_id[i] for i in resized.released]
            moved += resized.moved_pages
            handed_back += len(resized.released)
            seen.add(resized.num_pages)
            assert engine.running <= engine.slots_left == resized.slots
            pages_are_accounted_for(engine)
    assert rollouts == alone
    assert handed_back and len(seen) > 2
    assert num_compiles() == before, "a tenant waits for no compiler"
    assert moved or seed


def test_the_bytes_of_pages_go_and_come_back(
    engine: SharedEngine,
    dispatch: Callable[[Engine, Rollouts], int],
    requests: list[GenerateRequest],
) -> None:
    """What is alive on the device, as JAX counts it, and not as the engine says."""

    def alive() -> int:
        return sum(array.nbytes for array in jax.live_arrays())

    whole, page = engine.device_state.pool_bytes, engine.memory.sizes.page
    assert whole == engine.pool_sizes[0] * page
    engine.submit(requests)
    dispatch(engine, {})
    gc.collect()  # what other tests have left would go meanwhile
    start = alive()
    for size in (*engine.pool_sizes[1:], 0, engine.pool_sizes[-1], engine.pool_sizes[0]):
        resized = engine.resize(engine.slots, size)
        assert resized.num_pages == size
        assert start - alive() == whole - size * page == whole - resized.pool_bytes
    assert not engine.held(), "without pages nothing is kept"


def test_a_size_between_two_is_rounded_down_and_what_has_no_room_goes(
    engine: SharedEngine,
    dispatch: Callable[[Engine, Rollouts], int],
    requests: list[GenerateRequest],
) -> None:
    engine.submit(requests)
    rollouts: Rollouts = {}
    for _ in range(4):
        dispatch(engine, rollouts)
    held = {r.request_id: r.known for r in engine._held.values()}
    resized = engine.resize(2, engine.pool_sizes[0] - 1)
    assert resized.num_pages == engine.pool_sizes[1]
    assert resized.tokens == sum(held[i] for i in resized.released)
    assert set(engine.held()) == set(held) - set(resized.released) and engine.running <= 2


def test_no_resizing_under_a_program(engine: SharedEngine, requests: list[GenerateRequest]) -> None:
    engine.submit(requests[:1])
    engine.begin()
    with pytest.raises(EngineBusy, match="resize"):
        engine.resize(1, 100)
    engine.finish()


def test_what_is_allowed_bounds_the_next_program(
    engine: SharedEngine, request_of: Callable[..., GenerateRequest]
) -> None:
    engine.submit([request_of(n, range(n, n + 9), group=n) for n in range(4)])
    engine.allow(ProgramAllowance(steps=8, rows=8, prefill_tokens=0))
    assert engine.wants.prefill_tokens == 4 * 8 and engine.begin() == 0, "only prefill is to do"
    kinds = set()
    engine.allow(ProgramAllowance(steps=2, rows=2, prefill_tokens=3))
    while engine.held():
        assert engine.begin()
        plan = engine._launched[0][0]
        kinds.add(plan.mixed)
        if plan.mixed:
            single = [w for w in plan.work if w.start == w.rollout.known - 1]
            assert sum(w.count for w in plan.work) <= 3 + 2 and len(single) <= 2 + 1
        else:
            assert len(plan.work) <= 2 and all(w.budget <= 2 for w in plan.work)
        engine.finish()
    assert kinds == {True, False}


def test_a_program_that_only_prefills_is_one_dispatch(
    engine: SharedEngine, request_of: Callable[..., GenerateRequest]
) -> None:
    prompt = [7] * 20  # that no other test has left pages of
    engine.submit([request_of(1, prompt)])
    engine.allow(ProgramAllowance(steps=8, rows=8, prefill_tokens=8))
    yielded = []
    for _ in range(3):
        assert engine.begin() == 1
        yielded.append(len(engine.finish().tokens))
    assert yielded == [0, 0, 1]


def test_sizes_are_halves_with_room_for_the_longest() -> None:
    assert pool_sizes(100, least=11, count=3) == (100, 50, 25)
    assert pool_sizes(100, least=11, count=9) == (100, 50, 25, 13)
    assert pool_sizes(100, least=51, count=3) == (100,)
    assert pool_sizes(1, least=1, count=3) == (1,)
