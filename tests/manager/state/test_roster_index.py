"""The roster's index by hand; `tests/schedules/invariants.py` compares it after every event."""

from types import SimpleNamespace
from typing import Any

from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.roster import Roster
from tests.manager.fakes import begin_batch, hello, manifest, settings


def roster(count: int) -> Roster:
    """Instances that are ready for version 0, of streams 1, 2, …"""
    whole = Roster(settings(deterministic=False), 0.0)
    for stream in range(1, count + 1):
        instance = whole.join(stream, hello(price_per_hour=2.0 * stream), 0.0)
        instance.announce(manifest(0, "d"))
        instance.loaded(0, "d")
    return whole


def test_a_pool_is_in_the_order_of_joining_whatever_the_order_of_readiness() -> None:
    whole = roster(3)
    first, second, third = whole.streams.values()
    for instance in (first, second, third):
        instance.announce(manifest(1, "e"))
    assert not whole.index.pool(0, "d").instances
    for instance in (third, first, second):
        instance.loaded(1, "e")
    assert whole.index.pool(1, "e").instances == [first, second, third]
    whole.retire(second)
    whole.leave(first)
    assert whole.index.pool(1, "e").instances == [third]


def test_who_holds_what() -> None:
    whole = roster(2)
    busy, idle = whole.streams.values()
    step, _ = Ledger(Outbox()).begin(begin_batch(0, 0, "d"), 0.0)
    rollouts = step.take(3)
    for number, rollout in enumerate(rollouts):
        rollout.placement.begin(number, busy.name)
    busy.hold(rollouts, 0.0)
    pool = whole.index.pool(0, "d")
    assert (pool.idle, pool.working) == (1, 1)
    assert list(whole.index.crowded) == [busy.stream]
    busy.release(rollouts[:2], 1.0)
    assert whole.index.num_releasing == 2 and not whole.index.crowded
    whole.leave(busy)  # with what it holds
    assert whole.index.num_releasing == 0
    for number in range(3):
        busy.let_go(number)
    assert (pool.instances, pool.idle, whole.index.num_releasing) == ([idle], 1, 0)


def test_prices_and_names_follow() -> None:
    whole = roster(2)
    assert sum(whole.index.prices.elements()) == 6.0
    whole.leave(whole.streams[1])
    assert list(whole.index.prices.elements()) == [4.0]
    assert len(whole.index.names) == 1 == whole.index.claims.total()


def test_who_has_fewer_pages_than_slots_has_room_for_as_many_as_fit() -> None:
    """Rows of 70 tokens on average while nothing is known (half of a slot), of 8 by the batch:
    an answer of 8 tokens to a prompt of 4 holds 4 + 8 / 2 of them."""
    whole = Roster(settings(deterministic=False, slots=100, slot_tokens=140), 0.0)
    known = {"slots": 100, "slot_tokens": 140}
    silent, small, ample, tiny = (
        whole.join(stream, hello(**known, cache_tokens=tokens), 0.0)
        for stream, tokens in enumerate((0, 720, 14_000, 1))
    )
    rooms = [(i.room, i.last_room) for i in (silent, small, ample, tiny)]
    assert rooms == [(100, 100), (10, 10), (100, 100), (1, 1)]
    long, short = (SimpleNamespace(length=n + 4, num_sampled=n) for n in (996, 8))
    unfinished = SimpleNamespace(finished=False, sequences=SimpleNamespace(transcripts=[long]))
    nothing: Any = SimpleNamespace(rollouts=[unfinished])
    whole.learn(nothing)
    assert small.room == 10
    finished = SimpleNamespace(finished=True, sequences=SimpleNamespace(transcripts=[short]))
    batch: Any = SimpleNamespace(rollouts=[finished, unfinished, finished])
    whole.learn(batch)
    rooms = [(i.room, i.last_room) for i in (silent, small, ample, tiny)]
    assert rooms == [(100, 100), (90, 10), (100, 100), (1, 1)]
    late = whole.join(9, hello(**known, cache_tokens=720), 0.0)
    assert late.room == 90
