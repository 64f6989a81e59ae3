"""Servers that share their device: what the manager makes of the room that is left."""

from typing import Any

import pytest

from rlboost_jax import messages as m
from rlboost_jax.sequences.identities import Batch, Version
from tests.manager.desk import RESERVED, Desk
from tests.manager.fakes import settings

A, B = 10, 11


def at_work(*, rollouts: int = 4, **changes: int) -> tuple[Desk, list[m.GenerateRequest]]:
    """A server of four slots that holds some of a step's rollouts."""
    values = {"manager__max_pending": 0, "manager__seeding": False}
    desk = Desk(settings(**{**values, **changes}))
    desk.open_run()
    desk.publish(0)
    desk.join(A, 0, slots=4, cache_tokens=4 * desk.settings.slot_tokens)
    desk.begin(0, prompts=rollouts, group_size=1)
    held = desk.requests(A)
    assert len(held) == min(rollouts, 4)
    return desk, held


def capacity(
    desk: Desk,
    slots: int,
    back: list[m.GenerateRequest] | tuple[()] = (),
    *,
    stream: int = A,
    **values: Any,
) -> None:
    """It says so, and hands these back."""
    said: dict[str, Any] = {
        "slots": slots,
        "cache_tokens": slots * desk.settings.slot_tokens,
        "request_ids": m.pack_ids([r.request_id for r in back]),
    }
    desk.server(stream, m.Capacity(**{**said, **values}))


def test_what_is_handed_back_goes_elsewhere_with_its_tokens_and_none_comes_back() -> None:
    desk, held = at_work()
    desk.tokens(A, held, 1)
    capacity(desk, 2, held[2:], frozen=True, reason="a tenant")
    assert not desk.requests(A)
    desk.join(B, 0, slots=4)
    moved = desk.requests(B)
    assert len(moved) == 2 and all(len(r.response_tokens) == 4 for r in moved)
    assert [r.work for r in moved] == [r.work for r in held[2:]]


def test_a_change_is_recorded_once() -> None:
    desk, held = at_work()
    capacity(desk, 1, held[1:], frozen=True, reason="a tenant")
    (record,) = desk.records("resized")
    assert record.detail == {
        "slots": 1,
        "cache_tokens": desk.settings.slot_tokens,
        "count": 3,
        "tokens": sum(len(r.prompt_tokens) // 4 for r in held[1:]),
        "frozen": True,
        "reason": "a tenant",
    }
    capacity(desk, 1, held[1:], frozen=True)
    assert not desk.records("resized"), "nothing has changed"


def test_no_slot_is_no_room_and_with_slots_it_has_work_again() -> None:
    desk, held = at_work(rollouts=8)
    capacity(desk, 0, held)
    for _ in range(3):
        desk.tick(desk.now + 0.1)
        assert not desk.requests(A)
    desk.join(B, 0, slots=2)
    assert len(desk.requests(B)) == 2
    assert desk.manager.owners.roster.members == 1
    capacity(desk, 3)
    assert len(desk.requests(A)) == 3
    assert desk.manager.owners.roster.members == 2


def test_an_instance_without_slots_is_announced_new_versions_and_takes_work_of_none() -> None:
    desk, held = at_work()
    capacity(desk, 0, held)
    desk.publish(1)
    assert desk.sent(m.Announce, A)
    desk.server(A, m.Ready(version=Version(1), params_digest="d"))
    assert not desk.records("ready"), "it was ready before"


def test_fewer_pages_are_less_room() -> None:
    desk, held = at_work(rollouts=8)
    tokens = desk.settings.slot_tokens
    capacity(desk, 4, held, cache_tokens=tokens)
    instance = next(i for i in desk.manager.owners.roster if i.name == f"server-{A}")
    assert instance.slots == 4 and 1 <= instance.room < 4
    assert len(instance.held) == instance.room


def test_others_plan_with_what_is_left_and_the_kind_stays() -> None:
    desk, _ = at_work()
    desk.join(B, 0, slots=4, cache_tokens=4 * desk.settings.slot_tokens)
    a, b = (i for i in desk.manager.owners.roster if not i.reserved)
    capacity(desk, 1)
    assert a.kind == b.kind and (a.slots, b.slots) == (1, 4)
    assert desk.manager.owners.roster.index.lent == 3
    desk.server(A, m.Goodbye(reason="over"))
    assert desk.manager.owners.roster.index.lent == 0


@pytest.mark.parametrize(
    ("slots", "cache", "what"),
    [(5, 1.0, "5 slots"), (4, 5.0, "its Hello said"), (1, 0.5, "no room for one rollout")],
)
def test_a_capacity_that_cannot_be_ends_the_stream(slots: int, cache: float, what: str) -> None:
    desk, _ = at_work()
    capacity(desk, slots, cache_tokens=int(cache * desk.settings.slot_tokens))
    if cache == 5.0:
        assert what in desk.closed()[A]
    else:
        assert desk.closed()[A].startswith("malformed: capacity of") and what in desk.closed()[A]


def test_broken_request_ids_end_the_stream() -> None:
    desk, _ = at_work()
    capacity(desk, 1, request_ids=b"abc")
    assert desk.closed()[A].startswith("malformed")


def test_the_trainers_own_engine_shares_with_nobody() -> None:
    desk, _ = at_work()
    capacity(desk, 1, stream=RESERVED)
    assert "shares its device with nobody" in desk.closed()[RESERVED]


def test_lines_on_it_are_no_more_than_a_person_reads() -> None:
    desk, held = at_work()
    recorded = 0
    for n in range(300):
        capacity(desk, n % 2, held)
        recorded += len(desk.records("resized"))
        held = desk.requests(A) or held
    assert 0 < recorded <= 60
    assert A not in desk.closed()


def test_the_report_says_what_was_lent_and_handed_back() -> None:
    desk, held = at_work(rollouts=1)
    capacity(desk, 0, held, frozen=True)
    desk.now = 10.0
    capacity(desk, 4)
    (request,) = desk.requests(A)
    desk.tokens(A, [request])
    desk.now = 20.0
    desk.trainer(m.BatchTrained(batch=Batch(0), train_wait_seconds=0.0, train_seconds=0.0))
    (report,) = desk.sent(m.BatchReport)
    assert report.rollouts_handed_back == 1
    assert report.slots_lent_mean == pytest.approx(4 * 10 / 20)
    assert report.instances_frozen_mean == pytest.approx(10 / 20)
