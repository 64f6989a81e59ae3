"""What becomes of a server's work once its machine is to go."""

import math

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    MachineAdded,
    MachineRemoved,
    ServerGone,
    Stalled,
    Terminate,
)
from rlboost_jax.manager.reducer.drains import LEAVE_SECONDS, MARGIN_SECONDS, MAX_NOTICES
from rlboost_jax.manager.state.pool_record import FIRST_RETRY_SECONDS
from rlboost_jax.providers.base import Withdrawn
from tests.manager.desk import RESERVED, Desk
from tests.manager.fakes import nonce_of, ready, request, settings

A = 10
NOTICE = 60.0  # of these tests, given at second 0
RELEASE_AT = NOTICE - MARGIN_SECONDS


def at_work(prompts: int = 3, **changes: object) -> tuple[Desk, list[m.GenerateRequest]]:
    """Server A with six rollouts: two in its slots, four waiting there. Nobody's lease ends."""
    fixed: dict[str, object] = {"manager__lease_seconds": 1e6, "manager__progress_seconds": 1e6}
    fixed |= {"manager__max_pending": 4, "manager__seeding": False}
    desk = Desk(settings(**fixed | changes))
    desk.open_run()
    desk.publish(0)
    desk.join(A, version=0)
    desk.begin(0, prompts=prompts)
    requests = desk.requests(A)
    assert len(requests) == 6
    desk.tokens(A, requests[:2], 0, in_flight=4, running=2, waiting=4)
    return desk, requests


def notice(desk: Desk, seconds: float = NOTICE, reason: str = "aws: terminate") -> None:
    desk.server(A, m.Notice(seconds=seconds, reason=reason))


def releases(desk: Desk) -> list[int]:
    return [i for r in desk.sent(m.Release, A) for i in m.unpack_ids(r.request_ids).tolist()]


def give_back(desk: Desk, ids: list[int]) -> None:
    desk.server(A, m.Released(request_ids=m.pack_ids(ids)))


def test_what_waits_is_released_at_once_and_what_runs_goes_on() -> None:
    desk, requests = at_work()
    notice(desk)
    pending = releases(desk)
    assert pending == [r.request_id for r in requests[2:]]
    (record,) = desk.records("notice")
    assert record.detail == {"reason": "aws: terminate", "hint": False, "seconds": NOTICE}
    desk.server(RESERVED, ready(0))
    give_back(desk, pending)
    assert not desk.requests(A), "no new work"
    assert {r.work.sample for r in desk.requests(RESERVED)} <= {r.work.sample for r in requests[2:]}
    desk.tokens(A, requests[:2], 1, in_flight=4, running=2)
    assert not releases(desk) and not desk.sent(m.Leave, A)


def test_a_server_that_evicts_has_more_waiting_than_its_slots_say() -> None:
    desk, requests = at_work()
    desk.tokens(A, requests[:1], 0, in_flight=4, running=1, waiting=5)
    notice(desk)
    assert releases(desk) == [r.request_id for r in requests[1:]]


def test_the_rest_is_released_shortly_before_the_end() -> None:
    desk, requests = at_work()
    notice(desk)
    give_back(desk, releases(desk))
    assert desk.manager.next_deadline() <= RELEASE_AT
    desk.tick(math.nextafter(RELEASE_AT, 0))
    assert not releases(desk)
    desk.tick(RELEASE_AT)
    rest = releases(desk)
    assert rest == [r.request_id for r in requests[:2]]
    give_back(desk, rest)
    assert [leave.reason for leave in desk.sent(m.Leave, A)] == ["aws: terminate"]
    desk.server(A, m.Goodbye(reason="aws: terminate"))
    assert desk.records("drained") and not desk.records("lost")
    assert desk.manager.view.books.lost == 0


def test_slow_dispatches_are_released_from_earlier() -> None:
    desk, requests = at_work()
    desk.now = 7.0  # the dispatch took as long
    desk.tokens(A, requests[:2], 1, in_flight=4, running=2, waiting=4)
    notice(desk)  # the machine goes at 67
    give_back(desk, releases(desk))
    desk.tick(RELEASE_AT - 0.01)
    assert not releases(desk)
    desk.tick(RELEASE_AT)
    assert releases(desk)


def test_who_proves_so_slow_that_its_time_has_come_leaves_waiting_work_to_others_at_once() -> None:
    """Found by a random schedule: what waited for room did so until something else happened."""
    desk, requests = at_work(prompts=4, manager__drain_seconds=2.5)
    desk.server(RESERVED, ready(0))
    notice(desk, 10.0)
    assert desk.manager.view.batch.num_waiting
    assert not releases(desk) and not desk.requests(RESERVED)
    desk.now = 7.0  # the dispatch took as long: the next might not end in time
    desk.tokens(A, requests[:2], 1, in_flight=4, running=2, waiting=4)
    assert releases(desk) and desk.requests(RESERVED)


@pytest.mark.parametrize("seconds", [0.001, MARGIN_SECONDS])
def test_a_short_notice_asks_everything_back_at_once(seconds: float) -> None:
    desk, requests = at_work()
    notice(desk, seconds)
    assert releases(desk) == [r.request_id for r in requests]


def test_a_server_that_goes_this_very_moment_is_asked_to_leave() -> None:
    desk, _ = at_work()
    notice(desk, 0.0)
    assert desk.sent(m.Leave, A)


def test_a_server_that_holds_nothing_leaves() -> None:
    desk, requests = at_work()
    notice(desk)
    give_back(desk, releases(desk))
    desk.tokens(A, requests[:2], 99)
    assert desk.sent(m.Leave, A)
    idle = Desk(settings())
    idle.join(A)
    notice(idle)
    assert idle.sent(m.Leave, A)


def test_an_early_notice_changes_nothing_before_its_time() -> None:
    desk, _ = at_work(manager__drain_seconds=NOTICE)
    notice(desk, 3_600.0)
    assert desk.records("notice") and not releases(desk)
    begins = 3_600.0 - NOTICE
    assert desk.manager.next_deadline() <= begins
    desk.tick(math.nextafter(begins, 0))
    assert not releases(desk)
    desk.tick(begins)
    assert len(releases(desk)) == 4
    desk.tick(begins + RELEASE_AT)
    assert len(releases(desk)) == 2


def test_however_little_is_left_for_draining_the_margin_is_kept() -> None:
    desk, requests = at_work(manager__drain_seconds=0.0)
    notice(desk)
    desk.tick(RELEASE_AT)
    assert releases(desk) == [r.request_id for r in requests]


def test_a_server_that_stays_is_asked_to_leave_and_then_its_stream_is_closed() -> None:
    desk, _ = at_work()
    notice(desk)
    desk.tick(RELEASE_AT)  # it answers nothing
    desk.tick(NOTICE)
    assert desk.sent(m.Leave, A) and not desk.closed()
    assert desk.manager.next_deadline() <= NOTICE + LEAVE_SECONDS
    desk.tick(math.nextafter(NOTICE + LEAVE_SECONDS, 0))
    assert not desk.closed() and not desk.sent(m.Leave)
    desk.server(RESERVED, ready(0))
    desk.tick(NOTICE + LEAVE_SECONDS)
    assert "still here" in desk.closed()[A]
    assert desk.records("lost")[0].detail["count"] == 6 and desk.requests(RESERVED)


def test_a_server_that_goes_earlier_is_lost_with_what_it_held() -> None:
    desk, _ = at_work()
    notice(desk)
    desk(ServerGone(A, "stream closed"), at=5.0)
    (lost,) = desk.records("lost")
    assert lost.detail["count"] == 6 and not desk.records("drained")


def test_a_notice_that_comes_again_or_later_changes_nothing() -> None:
    desk, _ = at_work()
    notice(desk)
    for seconds in (NOTICE, NOTICE + 1):
        notice(desk, seconds)
        assert not desk.actions
    notice(desk, 30.0)
    assert desk.records("notice")
    desk.tick(30.0 - MARGIN_SECONDS)
    assert len(releases(desk)) == 2


def test_only_so_many_notices_of_a_stream_are_recorded() -> None:
    desk, _ = at_work()
    recorded = 0
    for number in range(3 * MAX_NOTICES):
        notice(desk, 1_000.0 - number, reason="x" * 10_000)
        recorded += len(desk.records("notice"))
        assert all(len(r.detail["reason"]) <= 200 for r in desk.records("notice"))
        desk.server(A, m.Hint(reason="y"))
        recorded += len(desk.records("notice"))
    assert recorded == MAX_NOTICES


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 86_400.1])
def test_an_impossible_notice_ends_its_stream(seconds: float) -> None:
    desk, _ = at_work()
    notice(desk, seconds)
    assert desk.closed()[A].startswith(f"malformed: notice of {seconds} s")


def test_a_hint_is_recorded_and_changes_nothing() -> None:
    desk, _ = at_work()
    desk.server(A, m.Hint(reason="aws: rebalance recommendation"))
    (record,) = desk.actions
    assert record is desk.records("notice")[0] and record.detail["hint"] is True


def test_the_trainers_own_engine_goes_with_its_trainer_only() -> None:
    desk, _ = at_work()
    desk.server(RESERVED, m.Notice(seconds=0.0, reason="x"))
    assert desk.records("notice") and not desk.sent(m.Leave)


def test_who_leaves_is_not_sent_new_weights() -> None:
    desk, _ = at_work()
    notice(desk)
    desk.publish(1)
    assert not desk.sent(m.Announce, A)


def test_a_notice_after_the_markets_own_is_heeded() -> None:
    """The market's signal only stops new work; the server then says how long it has."""
    desk = Desk(settings(manager__max_pending=4, manager__seeding=False))
    desk.open_run()
    desk.publish(0)
    desk(MachineAdded("m1"))
    desk.grant("local-1")
    desk.join_granted(A, "local-1")
    desk.begin(0)
    requests = desk.requests(A)
    desk(MachineRemoved("m1", notice=True))
    assert desk.records("notice") and not releases(desk)
    notice(desk, reason="SIGTERM")
    assert releases(desk) == [r.request_id for r in requests[2:]]


def test_a_stall_of_the_manager_does_not_hold_up_a_machine() -> None:
    desk, _ = at_work()
    notice(desk)
    desk(Stalled(NOTICE), at=NOTICE)
    assert desk.sent(m.Leave, A), "it goes when it goes"
    desk(Stalled(LEAVE_SECONDS), at=NOTICE + LEAVE_SECONDS)
    assert not desk.closed(), "but its goodbye may lie in the socket"


def granted() -> Desk:
    """The provider has an instance for the only machine."""
    desk = Desk(
        settings(manager__max_pending=4, manager__seeding=False, manager__lease_seconds=1e6)
    )
    desk.open_run()
    desk.publish(0)
    desk(MachineAdded("m1"))
    desk.grant("local-1")
    return desk


def withdraw(desk: Desk, nonce: str = "") -> None:
    desk(Withdrawn("local-1", nonce or nonce_of("local-1"), NOTICE, "the spot market"))


def test_what_the_provider_withdraws_is_under_notice() -> None:
    desk = granted()
    desk.join_granted(A, "local-1")
    desk.begin(0)
    requests = desk.requests(A)
    withdraw(desk, nonce="of-another")
    assert not desk.actions, "nobody that we know of"
    withdraw(desk)
    (record,) = desk.records("notice")
    assert record.detail == {"reason": "the spot market", "hint": False, "seconds": NOTICE}
    assert releases(desk) == [r.request_id for r in requests[2:]]
    assert not [a for a in desk.actions if isinstance(a, Terminate)], "others end it"
    desk.tokens(A, requests[:2], 1)
    assert not [a for a in desk.exit("local-1", "taken", None) if isinstance(a, Terminate)]
    assert request("local-2") in desk.actions, "it has worked: the next one need not wait"


def test_an_instance_withdrawn_before_it_joins_goes_all_the_same() -> None:
    desk = granted()
    withdraw(desk)
    desk.now = 20.0
    desk.join_granted(A, "local-1", None)
    (record,) = desk.records("notice")
    assert record.detail["seconds"] == NOTICE - 20.0
    desk.exit("local-1", "taken")
    assert request("local-2") not in desk.actions, "it gave no token: a pause first"
    assert request("local-2") in desk.tick(20.0 + FIRST_RETRY_SECONDS)
