"""What becomes of servers that are sent home for want of work, whatever they do about it."""

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    MachineAdded,
    Request,
    ServerGone,
    Terminate,
)
from rlboost_jax.manager.reducer.drains import LEAVE_SECONDS, MARGIN_SECONDS
from rlboost_jax.manager.state.fleet_machines import ABSENT_SECONDS
from tests.manager.desk import Desk
from tests.manager.fakes import begin_batch, hello, ready, request, settings

A, B, AGAIN = 11, 12, 13
PATIENT = {"manager__lease_seconds": 1e6, "manager__renew_seconds": 1.0}


def at_work() -> Desk:
    """Two of the provider's servers with the rollouts of a step."""
    desk = Desk(settings(manager__seeding=False, **PATIENT))
    desk.open_run(reserved=False)
    desk.publish(0)
    for number, stream in enumerate((A, B), 1):
        desk(MachineAdded(f"m{number}"))
        desk.grant(f"local-{number}")
        desk.server(stream, hello(instance=f"local-{number}", nonce=f"0-{number}"))
        desk.server(stream, ready(0))
    desk.server(2, hello(instance="trainer", reserved=True))
    desk.server(2, ready(0))
    desk.trainer(begin_batch(0, 0, "d", prompts=4))
    return desk


def dismiss(desk: Desk, stream: int) -> None:
    """As `Tail` does."""
    manager = desk.manager
    manager.components.servers.dismiss(manager.view.instances[stream], desk.now)
    manager.components.tail.resting = len(manager.view.fleet.standing)
    desk.tick(desk.now + 1e-3)


def test_it_gives_its_work_back_and_goes() -> None:
    desk = at_work()
    held = list(desk.manager.view.instances[A].held)
    assert held
    dismiss(desk, A)
    released = [m.unpack_ids(r.request_ids).tolist() for r in desk.sent(m.Release, A)]
    assert released == [held] and desk.records("dismissed")[0].detail == {"count": len(held)}
    desk.server(A, m.Released(request_ids=m.pack_ids(held)))
    assert desk.sent(m.Leave, A) and not desk.manager.view.instances[A].held
    assert {r.placement.holder for r in desk.manager.view.batches[0].rollouts} <= {"local-2", ""}
    desk.server(A, m.Goodbye(reason="asked to"))
    desk.exit("local-1", "0")
    assert desk.records("drained") == [] and not any(isinstance(a, Request) for a in desk.actions)
    assert desk.manager.view.roster.losses == 0 and desk.manager.view.roster.lost == 0


def test_all_come_back_when_there_is_work_again() -> None:
    desk = at_work()
    dismiss(desk, A)
    desk.server(A, m.Goodbye(reason="asked to"))
    desk.exit("local-1", "0")
    desk.manager.components.tail.resting = None
    assert request("local-3") in desk.tick(desk.now + 1.0) + desk.grant("local-2")


def test_one_that_dials_again_is_sent_away_again() -> None:
    desk = at_work()
    dismiss(desk, A)
    desk(ServerGone(A, "cut"))
    desk.server(AGAIN, hello(instance="local-1", nonce="0-1"))
    assert desk.sent(m.Leave, AGAIN) and AGAIN in desk.closed()
    assert AGAIN not in desk.manager.view.instances


def test_one_that_stays_is_hung_up_on_and_killed() -> None:
    desk = at_work()
    dismiss(desk, A)
    slowest = desk.manager.view.instances[A].activity.slowest
    desk.tick(desk.now + MARGIN_SECONDS + slowest)
    assert desk.sent(m.Leave, A)
    desk.tick(desk.now + LEAVE_SECONDS)
    assert A in desk.closed() and desk.records("lost")
    assert desk.manager.view.fleet.absent_at == desk.now + ABSENT_SECONDS
    desk.tick(desk.now + ABSENT_SECONDS)
    assert Terminate("local-1", 0.0) in desk.actions


def test_a_server_started_by_hand_is_never_sent_home() -> None:
    desk = at_work()
    desk.join(AGAIN, version=0)
    desk.manager.components.servers.dismiss(desk.manager.view.instances[AGAIN], desk.now)
    assert not desk.manager.view.instances[AGAIN].departure.dismissed
