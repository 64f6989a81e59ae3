"""Servers that renew their lease and are of no use all the same: stuck, unreachable, or failed."""

import math

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    MachineAdded,
    ServerGone,
    Stalled,
    Terminate,
)
from rlboost_jax.manager.state.fleet_machines import ABSENT_SECONDS
from rlboost_jax.manager.state.pool_record import FIRST_RETRY_SECONDS
from rlboost_jax.providers.base import ANY_POOL
from tests.manager.desk import RESERVED, Desk, at_work
from tests.manager.fakes import batch, manifest, ready, settings

A = 10
PATIENCE = 30.0  # manager.progress_seconds of these tests


def working(**changes: object) -> tuple[Desk, list[m.GenerateRequest]]:
    """Since second 1; leases are for another test."""
    return at_work(A, since=1.0, **{"manager__lease_seconds": 1e6} | changes)


def test_a_server_that_never_begins_is_lost() -> None:
    desk, _ = working()
    desk.tick(math.nextafter(1.0 + PATIENCE, 0))
    assert not desk.closed()
    assert desk.manager.next_deadline() <= 1.0 + PATIENCE
    desk.tick(1.0 + PATIENCE)
    assert desk.closed() == {A: "no progress for 30 s"}
    assert desk.records("lost")[0].detail["count"] == 4
    assert desk.requests(RESERVED), "its work has moved"


def test_a_dispatch_that_never_ends_is_lost_with_all_that_it_announced() -> None:
    desk, requests = working()
    desk.tokens(A, requests[:2], 0, in_flight=8, running=2)
    desk.tick(20.0)
    desk.tokens(A, requests[:2], 1, in_flight=6, running=2)
    desk.tick(20.0 + PATIENCE - 0.01)
    assert not desk.closed()
    desk.tick(20.0 + PATIENCE + 10 * 19.0)  # the first one took 19 s
    assert A in desk.closed()
    assert desk.manager.view.books.lost == 6


def test_renewals_and_empty_batches_are_no_progress() -> None:
    desk, requests = working()
    for number in range(30):
        desk.now = 1.0 + number
        desk.server(A, m.Renew())
        desk.tokens(A, requests[:1], 0, in_flight=4, running=1)
    desk.tick(1.0 + PATIENCE)
    assert A in desk.closed()


def test_tokens_of_no_use_are_no_progress() -> None:
    """They are of another version, of an unknown request, or none at all of its own."""
    desk, requests = working()
    mine = requests[0].request_id
    for number, (version, rows) in enumerate([(9, [(mine, [5])]), (0, [(777, [5]), (mine, [])])]):
        desk.now = 15.0
        desk.server(A, batch(number, version, rows, in_flight=4))
    desk.tick(1.0 + PATIENCE)
    assert A in desk.closed()


def test_a_server_that_holds_nothing_owes_nothing() -> None:
    desk, requests = working()
    desk.tokens(A, requests, 99)
    desk.tick(1.0 + 100 * PATIENCE)
    assert not desk.closed()


def test_the_clock_starts_when_work_comes() -> None:
    desk, requests = working()
    desk.tokens(A, requests, 99)
    desk.now = 50.0
    desk.trainer(m.BatchTrained(batch=0, train_wait_seconds=0.0, train_seconds=1.0))
    desk.begin(1)
    desk.publish(1)
    desk.server(A, ready(1))
    assert desk.requests(A)
    desk.tick(50.0 + PATIENCE - 0.01)
    assert not desk.closed()
    desk.tick(50.0 + PATIENCE)
    assert A in desk.closed()


LOADING = 10 * PATIENCE  # weights may be slow to come, and to go to the device


def loading(**changes: object) -> Desk:
    """A holds nothing and is on its way to version 1, since second 51."""
    desk, requests = working(**changes)
    desk.tokens(A, requests, 99)
    desk.now = 50.0
    desk.publish(1)
    desk.now = 51.0
    desk.server(A, m.Renew())
    return desk


def test_a_server_that_hangs_with_weights_is_lost() -> None:
    desk = loading()
    desk.now = 200.0
    desk.server(A, m.Renew())
    desk.tick(51.0 + LOADING - 0.01)
    assert not desk.closed()
    assert desk.manager.next_deadline() <= 51.0 + LOADING
    desk.tick(51.0 + LOADING)
    assert desk.closed() == {A: "no byte of weights for 300 s"}
    desk.join(A + 1, instance=f"server-{A}")
    assert "no byte" in desk.closed()[A + 1], "it would hang again"


def granted() -> Desk:
    """A is one of the provider's; leases are for another test."""
    desk = Desk(settings(manager__lease_seconds=1e6))
    desk.open_run()
    desk.publish(0)
    desk(MachineAdded("machine"))
    desk.grant("local-1")
    desk.join_granted(A, "local-1")
    return desk


def test_a_server_of_the_provider_s_that_hangs_with_weights_is_replaced() -> None:
    desk = granted()
    desk.publish(1)
    desk.server(A, m.Renew())
    desk.tick(desk.now + LOADING)
    assert A in desk.closed()
    assert [a.instance for a in desk.actions if isinstance(a, Terminate)] == ["local-1"]


@pytest.mark.parametrize("progress", [3.0, 30.0])
def test_a_pull_has_time_to_say_that_nothing_comes(progress: float) -> None:
    """After six attempts of 10 s."""
    desk = loading(manager__progress_seconds=progress)
    desk.tick(51.0 + 119.0)
    assert not desk.closed()


@pytest.mark.parametrize(
    "sign",
    [m.Renew(pulled_bytes=1), m.WeightsRejected(version=1, reason="one bit flipped")],
    ids=str,
)
def test_a_byte_of_weights_or_a_word_on_them_is_progress(sign: m.ServerMessage) -> None:
    desk = loading()
    desk.now = 200.0
    desk.server(A, sign)
    for now in (300.0, 400.0, 200.0 + LOADING - 0.01):
        desk.now = now
        desk.server(A, m.Renew(pulled_bytes=getattr(sign, "pulled_bytes", 0)))
        desk.tick(now)
    assert not desk.closed()
    desk.tick(200.0 + LOADING)
    assert A in desk.closed()


def test_who_has_loaded_owes_no_more_bytes() -> None:
    """It holds from then on, and not from its next renewal."""
    desk = loading()
    desk.now = 50.9 + LOADING
    desk.server(A, ready(1))
    desk.tick(51.0 + LOADING)
    assert not desk.closed()
    for now in (52.0 + LOADING, 52.0 + 3 * LOADING):
        desk.now = now
        desk.server(A, m.Renew())
        desk.tick(now)
    assert A in desk.manager.view.instances


def test_another_announcement_is_no_progress() -> None:
    """Versions are published more often than that."""
    desk = loading()
    for version, now in ((2, 150.0), (3, 250.0), (4, 350.0)):
        desk.now = now
        desk.publish(version)
        desk.server(A, m.Renew())
    desk.tick(51.0 + LOADING - 0.01)
    assert not desk.closed()
    desk.tick(51.0 + LOADING)
    assert A in desk.closed()


def test_time_in_which_nobody_was_heard_is_not_counted_for_weights() -> None:
    desk = loading()
    desk.now = 251.0
    desk(Stalled(200.0))
    desk.tick(51.0 + LOADING)
    assert not desk.closed()
    desk.tick(251.0 + LOADING)
    assert A in desk.closed()


def test_the_trainer_s_own_engine_pulls_nothing() -> None:
    desk, requests = working()
    desk.tokens(A, requests, 99)
    own = desk.manager.view.instances[RESERVED].parameters
    own.announce(manifest(1, "d"), held=False, back=False)  # as with a lag
    for now in (60.0, 60.0 + 2 * LOADING):
        desk.now = now
        desk.server(RESERVED, m.Renew())
        desk.tick(now)
    assert RESERVED in desk.manager.view.instances


@pytest.mark.parametrize("asked", [True, False])
def test_an_answer_to_a_release_is_progress(asked: bool) -> None:
    """What is given back unasked is none, nor what it does not hold."""
    desk, requests = working()
    desk.now = 5.0
    back = m.Released(request_ids=m.pack_ids([requests[0].request_id]))
    if asked:
        desk.begin(0, "other parameters", prompts=2)
        (release,) = desk.sent(m.Release, A)
        back = m.Released(request_ids=release.request_ids[:4])
    desk.now = 25.0
    desk.server(A, back)
    desk.server(A, m.Released(request_ids=m.pack_ids([777])))
    desk.tick(1.0 + PATIENCE)
    assert desk.closed() == ({} if asked else {A: "no progress for 30 s"})


def test_who_gives_all_work_back_is_not_given_it_for_ever() -> None:
    desk, requests = working()
    while not desk.closed():
        desk.now += 1.0
        desk.server(A, m.Released(request_ids=m.pack_ids([r.request_id for r in requests])))
        requests = desk.requests(A)
        assert requests or desk.closed()
    assert desk.now == 2.0 + PATIENCE
    assert desk.closed() == {A: "gave back all that it was given for 30 s"}
    assert desk.requests(RESERVED), "its work has moved"


def test_who_gives_work_back_and_then_a_token_is_of_use() -> None:
    desk, requests = working()
    for _ in range(3):
        desk.now += PATIENCE - 1.0
        desk.server(A, m.Released(request_ids=m.pack_ids([r.request_id for r in requests])))
        requests = desk.requests(A)
        desk.now += 2.0
        desk.tokens(A, requests[:1], 1, in_flight=4, running=1)
    assert not desk.closed()


@pytest.mark.parametrize("answers", [True, False])
def test_what_is_released_is_to_be_given_back(answers: bool) -> None:
    """However busy a server is with what it holds."""
    desk, requests = working()
    desk.now = 10.0
    desk.begin(0, "other parameters", prompts=2)
    (release,) = desk.sent(m.Release, A)
    for second in (15.0, 20.0, 25.0, 30.0, 35.0):
        desk.now = second
        desk.tokens(A, requests[:1], 1, in_flight=4, running=1)
    if answers:
        desk.server(A, m.Released(request_ids=release.request_ids))
    patience = 10 * 5.0  # its dispatches take 5 s
    desk.tick(10.0 + patience - 0.01)
    assert not desk.closed()
    deadline = desk.manager.next_deadline()
    assert deadline is not None and (answers or deadline <= 10.0 + patience)
    desk.tick(10.0 + patience)
    assert desk.closed() == ({} if answers else {A: "gave nothing back for 50 s"})


@pytest.mark.parametrize("seconds", [0.02, 4.0, 20.0])
def test_a_tenth_of_the_speed_is_not_stuck(seconds: float) -> None:
    """Ten dispatches as ever, then one that takes ten times as long."""
    desk, requests = working()
    desk.tokens(A, requests[:1], 0, in_flight=4, running=1)
    for _ in range(3):
        desk.now += seconds
        desk.tokens(A, requests[:1], 1, in_flight=4, running=1)
    desk.tick(desk.now + 9.99 * seconds)
    assert not desk.closed()


def test_pretending_to_be_slow_earns_a_bounded_time() -> None:
    desk, requests = working()
    desk.tokens(A, requests[:1], 0, in_flight=4, running=1)
    for seconds in (29.0, 290.0):
        desk.now += seconds
        desk.tokens(A, requests[:1], 1, in_flight=4, running=1)
        assert not desk.closed()
    desk.tick(desk.now + 10 * PATIENCE)
    assert desk.closed() == {A: "no progress for 300 s"}


def test_a_stall_of_the_manager_is_nobodys_fault() -> None:
    desk, _ = working()
    desk(Stalled(25.0), at=26.0)
    desk.tick(1.0 + PATIENCE)
    assert not desk.closed()
    desk.tick(26.0 + PATIENCE)
    assert A in desk.closed()


# Unreachable servers: lease 2 s, renewal 0.5 s


def renew(desk: Desk, at: float, echo: float) -> list[float]:
    """The stamps that a renewal is answered with."""
    desk.now = at
    desk.server(A, m.Renew(echo=echo))
    return [answer.stamp for answer in desk.sent(m.Renewed, A)]


def test_a_server_that_no_longer_hears_is_lost() -> None:
    desk = Desk()
    desk.now = 10.0
    desk.join(A)
    (welcome,) = desk.sent(m.Welcome, A)
    assert welcome.stamp == 10.0
    assert renew(desk, 10.5, echo=10.0) == [10.5]
    assert renew(desk, 11.0, echo=10.5) == [11.0]
    assert renew(desk, 11.5, echo=10.5) == [11.5]
    assert renew(desk, 11.99, echo=10.5) == [11.99]
    assert renew(desk, 12.0, echo=10.5) == []
    assert desk.closed() == {A: "unreachable for 1.5 s: it receives nothing from us"}


def test_an_echo_from_the_future_proves_nothing() -> None:
    desk = Desk()
    desk.now = 10.0
    desk.join(A)
    renew(desk, 10.5, echo=10.0)
    for echo in (1e9, math.nan, math.inf, -1.0):
        renew(desk, 11.0, echo=echo)
    assert A not in desk.closed()
    renew(desk, 11.5, echo=11.0000001 + 1)
    assert A in desk.closed()


def test_renewals_that_piled_up_during_a_stall_are_reachable() -> None:
    desk = Desk()
    desk.now = 10.0
    desk.join(A)
    renew(desk, 10.5, echo=10.0)
    desk(Stalled(5.0), at=15.5)
    for _ in range(10):  # sent meanwhile: nobody answered them
        assert renew(desk, 15.5, echo=10.5) == [15.5]
    assert renew(desk, 16.0, echo=15.5) == [16.0]


def test_a_stall_before_the_first_echo_makes_no_server_unreachable() -> None:
    """Its first echo is of the welcome, and older than a lease by then; it was all there was."""
    desk = Desk()
    desk.now = 10.0
    desk.join(A)
    desk(Stalled(5.0), at=15.1)
    desk(Stalled(0.1), at=15.2)
    assert renew(desk, 15.2, echo=10.0) == [15.2]
    assert renew(desk, 15.6, echo=15.2) == [15.6]


# Failed servers


def test_a_failed_server_is_lost_with_the_dispatch_that_failed() -> None:
    desk, requests = working()
    desk.tokens(A, requests[:2], 0, in_flight=8, running=2)
    desk.server(A, m.Goodbye(reason="failed: NonFiniteLogits: version 0", failed=True))
    (lost,) = desk.records("lost")
    assert lost.detail["reason"].startswith("failed: ") and lost.detail["tokens_lost"] == 8
    assert desk.manager.view.books.lost == 8 and desk.requests(RESERVED)


@pytest.mark.parametrize("by", ["goodbye", "exit code"])
def test_the_machine_of_a_failed_server_rests_longer_each_time(by: str) -> None:
    """Although each gave tokens, which otherwise is proof that a new one will work."""
    desk = Desk(settings(manager__seeding=False, fleet__max_instances=1))
    desk.open_run()
    desk.publish(0)
    desk.begin(0)
    desk(MachineAdded("m1"))
    pauses = []
    for number in range(1, 4):
        name, stream = f"local-{number}", 100 + number
        desk.grant(name)
        desk.join_granted(stream, name)
        desk.tokens(stream, desk.requests(stream)[:1], 1)
        assert desk.manager.view.fleet.servers[name].proved
        if by == "goodbye":
            desk.server(stream, m.Goodbye(reason="failed: x", failed=True))
        else:
            desk(ServerGone(stream, "stream closed"))
        desk.exit(name, "exit code", m.FAILED_EXIT_CODE if by == "exit code" else None)
        assert not desk.manager.view.fleet.servers
        pauses.append(desk.manager.owners.pools[ANY_POOL].retry_at - desk.now)
        desk.tick(desk.manager.owners.pools[ANY_POOL].retry_at)
        desk.server(RESERVED, m.Renew())
    assert pauses == [FIRST_RETRY_SECONDS * 2**i for i in range(3)]


def test_a_server_that_dials_again_before_its_old_stream_is_missed_lives_on() -> None:
    """It is there all the time, so nothing is terminated."""
    desk = granted()
    desk.join_granted(A + 1, "local-1")
    desk(ServerGone(A, "the old one, at last"))
    assert A + 1 not in desk.closed()
    desk.tick(desk.now + 10 * ABSENT_SECONDS)
    assert not [a for a in desk.actions if isinstance(a, Terminate)]
    desk(ServerGone(A + 1, "and the new one"))
    desk.tick(desk.now + 2 * ABSENT_SECONDS)
    assert [a.instance for a in desk.actions if isinstance(a, Terminate)] == ["local-1"]
