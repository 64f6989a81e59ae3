"""The run as a whole: trainers, orphans, the market, money, status; one event at a time."""

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    Exit,
    InstanceExited,
    MachineAdded,
    MachineRemoved,
    ServerGone,
    Shutdown,
    Signal,
    Start,
    TrainerGone,
)
from rlboost_jax.manager.state import ORPHANED
from tests.manager.desk import RESERVED, TRAINER, Desk, seeded, trained
from tests.manager.fakes import begin_step, settings

A, B = 10, 11


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (m.TrainerHello(run_id="other", step=0, window=None, pid=1), "'other'"),
        (trained(3), "step 3"),
        (begin_step(0, 0, "d", prompts=0), "no tokens"),
        (
            msgspec.structs.replace(
                begin_step(0, 0, "d"),
                prompts=(m.PromptRequest(prompt=0, tokens=m.pack_tokens(range(5))),),
            ),
            "does not fit a slot of 16",
        ),
    ],
)
def test_impossible_wishes_of_the_trainer(message: m.TrainerMessage, words: str) -> None:
    desk = Desk()
    desk.open_run()
    desk.trainer(message)
    assert words in desk.closed()[TRAINER]
    assert desk.manager.ledger.active is None


def test_a_trainer_must_say_hello() -> None:
    desk = Desk()
    desk.trainer(begin_step(0, 0, "d"))
    assert "before TrainerHello" in desk.closed()[TRAINER]


def test_the_checkpoint_brings_the_window_back() -> None:
    desk = Desk()
    window = m.WindowState(seconds=7.0, memory={2: 3.0}, instance_cap=4)
    desk.open_run(window=window)
    assert desk.sent(m.Welcome) and desk.manager.trainer.window == window


def test_a_server_under_notice_is_churn() -> None:
    desk = Desk(settings(deterministic=False))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk(MachineAdded("m1"))
    desk.join(A, version=0, instance="local-1")
    desk.join(B, version=0)
    desk.begin(0, prompts=1)
    desk.now = 1.0
    desk.server(A, m.Renew())
    desk(MachineRemoved("m1", notice=True))
    desk.server(A, m.Goodbye(reason="SIGTERM"))
    desk.trainer(trained(0))
    assert desk.sent(m.StepReport)[0].window.memory == {}


def test_orphans_leave() -> None:
    desk = Desk(settings(fleet__orphan_seconds=9.0))
    desk.open_run()
    desk(TrainerGone(TRAINER, "killed"), at=1.0)
    for now in range(2, 10):
        desk.now = float(now)
        desk.server(RESERVED, m.Renew())
        assert not desk.manager.over
    desk.tick(10.0)
    assert desk.sent(m.Leave, RESERVED)
    (leaving,) = [a for a in desk.actions if isinstance(a, Exit)]
    assert leaving.code == ORPHANED
    assert desk.manager.next_deadline() is None and not desk.tick(11.0)


@pytest.mark.parametrize("end", ["trainer", "signal"])
def test_the_end_of_a_run_sends_everyone_home(end: str) -> None:
    desk = seeded()
    if end == "trainer":
        desk.trainer(m.EndRun(reason="done"))
    else:
        desk(Shutdown("SIGTERM"))
    assert desk.sent(m.Leave, RESERVED) and TRAINER in desk.closed()
    assert [a.code for a in desk.actions if isinstance(a, Exit)] == [0]


def test_the_market_gives_and_takes() -> None:
    desk = seeded(manager__seeding=False)
    desk.publish(0)
    assert [a for a in desk(MachineAdded("m1")) if isinstance(a, Start)] == [Start("local-1")]
    assert not desk(MachineRemoved("", notice=True)), "it has not even joined"
    desk.join(A, version=0, instance="local-1")
    assert not [a for a in desk.actions if isinstance(a, Signal)], "it is not at work"
    desk.tokens(A, [], in_flight=8)
    assert Signal("local-1", notice=True) in desk.actions and desk.records("notice")
    assert desk.manager.status(0.0).instances[-1].state == "leaving"
    desk.server(A, m.Goodbye(reason="SIGTERM"))
    assert not [a for a in desk(InstanceExited("local-1", "0")) if isinstance(a, Start)]
    assert Start("local-2") in desk(MachineAdded(""))
    desk(MachineRemoved("m1", notice=False))
    assert Signal("local-2", notice=False) in desk.actions


def test_money_and_time() -> None:
    """1 $/s for a server, 2 $/s for the reserved devices."""
    desk = seeded()
    desk.publish(0)
    desk.now = 1.0
    desk.server(RESERVED, m.Renew())
    desk.join(A, version=0)
    desk.now = 2.0
    desk.server(RESERVED, m.Renew())
    desk.now = 3.0
    desk(ServerGone(A, "killed"))
    desk.now = 4.0
    desk.trainer(trained(0))
    (report,) = desk.sent(m.StepReport)
    assert report.cost_dollars == pytest.approx(4 * 2 + 2 * 1)
    assert report.instances_mean == pytest.approx(2 / 4)
    assert (report.instances_joined, report.instances_lost) == (1, 1)


def test_status_comes_about_once_a_second() -> None:
    desk = Desk()
    desk.open_run()
    assert desk.manager.next_deadline() == 1.0
    for _ in range(3):
        desk.now = desk.manager.next_deadline() or 0.0
        desk.server(RESERVED, m.Renew())
        assert len(desk.sent(m.FleetStatus)) == 1
    desk.publish(5)
    assert desk.now == 3.0 and desk.manager.status(3.0).versions_in_use == (5,)
