"""Which rollouts move between servers, one event at a time."""

from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone
from tests.manager.desk import Desk
from tests.manager.fakes import ready, settings

A, B = 10, 11


def busy_server(
    held: int, *, slots: int, cache_tokens: int = 0
) -> tuple[Desk, list[m.GenerateRequest]]:
    """One server that holds `held` rollouts, in a run without reserved engines."""
    desk = Desk(settings(deterministic=False, manager__max_pending=held))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, version=0, slots=slots, cache_tokens=cache_tokens)
    desk.begin(0, prompts=held // 2)
    requests = desk.requests(A)
    assert len(requests) == held
    return desk, requests


def releases(desk: Desk) -> list[int]:
    return [i for r in desk.sent(m.Release, A) for i in m.unpack_ids(r.request_ids).tolist()]


def test_pending_rollouts_move_to_free_slots_and_the_newest_first() -> None:
    desk, requests = busy_server(8, slots=4)
    desk.join(B, version=0, slots=3)
    ids = [r.request_id for r in requests]
    assert releases(desk) == ids[-3:]
    desk.server(A, m.Released(request_ids=m.pack_ids(ids[-3:])))
    assert {r.work.sample for r in desk.requests(B)} == {r.work.sample for r in requests[-3:]}


def test_rollouts_that_have_begun_do_not_count_as_pending() -> None:
    desk, requests = busy_server(8, slots=4)
    desk.tokens(A, requests[-1:], 1)
    desk.join(B, version=0, slots=3)
    assert releases(desk) == [r.request_id for r in requests[-4:-1]]


def test_nothing_moves_where_balance_is_off() -> None:
    desk = Desk(settings(deterministic=False, manager__balance=False))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, version=0)
    desk.begin(0)
    desk.join(B, version=0, slots=8)
    assert not desk.sent(m.Release)


def test_running_rollouts_move_above_the_plateau_and_the_shortest_first() -> None:
    desk, requests = busy_server(8, slots=8)
    instance = next(iter(desk.manager.view.roster))
    for batch in (2, 8):  # as many tokens a second with two as with eight
        for _ in range(4):
            desk.manager.components.profile.add(
                instance.kind, batch=batch, tokens=8, seconds=1.0, context=3.0
            )
    desk.manager.components.profile.end_step()
    desk.tokens(A, [r for r in requests if r.work.sample not in (2, 5)], 1)
    still = [i for i in instance.held if instance.held[i].transcript.num_tokens == 0]
    desk.join(B, version=0, slots=8)
    moving = releases(desk)
    assert set(still) <= set(moving)
    assert len(moving) == len(instance.held) // 2


def test_an_engine_with_other_weights_is_asked_to_stop_the_old_work() -> None:
    desk, requests = busy_server(2, slots=4)
    desk.server(A, ready(1))
    assert releases(desk) == [r.request_id for r in requests]
    desk(ServerGone(A, "killed"))
    assert desk.manager.view.batches[0].num_waiting == 2


def test_rollouts_that_memory_has_no_pages_for_are_pending_too() -> None:
    """64 slots, pages for five of half the longest rollout's 16 tokens each."""
    desk, requests = busy_server(8, slots=64, cache_tokens=40)
    desk.join(B, version=0, slots=64)
    assert releases(desk) == [r.request_id for r in requests[5:]]


def test_a_server_takes_no_more_than_its_pages_and_what_may_be_pending() -> None:
    desk = Desk(settings(deterministic=False, manager__max_pending=2))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, version=0, slots=64, cache_tokens=40)
    desk.begin(0, prompts=6)
    assert len(desk.requests(A)) == 5 + 2
