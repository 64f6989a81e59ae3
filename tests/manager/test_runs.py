"""The run as a whole: trainers, orphans, the market, money, status; one event at a time."""

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    Append,
    Exit,
    MachineAdded,
    MachineRemoved,
    Request,
    ServerGone,
    Shutdown,
    Stalled,
    Terminate,
    TrainerGone,
)
from rlboost_jax.manager.journal_entries import RunOver
from rlboost_jax.manager.reducer.manager import ORPHANED
from rlboost_jax.manager.reducer.provisioning import GRACE_SECONDS
from rlboost_jax.providers.base import ANY_POOL, Exited, Granted, Refused
from tests.manager.desk import RESERVED, TRAINER, Desk, seeded, trained
from tests.manager.fakes import RUN, begin_batch, nonce_of, request, settings
from tests.manager.fakes import hello as server_hello

A, B = 10, 11


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (m.TrainerHello(run_id="other", window=None), "'other'"),
        (trained(3), "batch 3"),
        (begin_batch(0, 0, "d", prompts=0), "no tokens"),
        (
            msgspec.structs.replace(
                begin_batch(0, 0, "d"),
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
    (refused,) = desk.sent(m.RequestRefused, TRAINER)
    assert refused.reason == desk.closed()[TRAINER]
    assert desk.manager.view.batch is None


def test_what_was_changed_is_an_event_once() -> None:
    """Also where the trainer dials again; not where it has nothing to tell."""
    desk = Desk()
    desk.open_run()
    assert not desk.records("changed")
    told = ("step 4: learner.mesh (1, 8, 1) → (1, 4, 1)",)
    hello, events = m.TrainerHello(run_id=RUN, window=None, changes=told), []
    for stream in (TRAINER, 50):
        desk.trainer(hello, stream)
        events += desk.records("changed")
    assert [event.detail for event in events] == [{"changes": list(told)}]


def test_a_trainer_must_say_hello() -> None:
    desk = Desk()
    desk.trainer(begin_batch(0, 0, "d"))
    assert "before TrainerHello" in desk.closed()[TRAINER]


def test_the_checkpoint_brings_the_window_back() -> None:
    desk = Desk()
    window = m.WindowState(seconds=7.0, memory={2: 3.0}, instance_cap=4)
    desk.open_run(window=window)
    assert desk.sent(m.Welcome) and desk.manager.view.window == window


def test_a_server_under_notice_is_churn() -> None:
    desk = Desk(settings(deterministic=False))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk(MachineAdded("m1"))
    desk.grant("local-1")
    desk.join_granted(A, "local-1")
    desk.join(B, version=0)
    desk.begin(0, prompts=1)
    desk.now = 1.0
    desk.server(A, m.Renew())
    desk(MachineRemoved("m1", notice=True))
    desk.server(A, m.Goodbye(reason="SIGTERM"))
    desk.trainer(trained(0))
    assert desk.sent(m.BatchReport)[0].window.memory == {}


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


def test_the_first_trainer_has_a_time_of_its_own() -> None:
    desk = Desk(settings(fleet__orphan_seconds=0.0))
    desk.tick(59.0)
    assert not desk.manager.over
    desk.open_run()
    desk(TrainerGone(TRAINER, "killed"))
    (leaving,) = [a for a in desk.actions if isinstance(a, Exit)]
    assert (leaving.code, leaving.reason) == (ORPHANED, "no trainer for 0 s")
    desk = Desk(settings(fleet__orphan_seconds=0.0))
    assert [a.reason for a in desk.tick(60.0) if isinstance(a, Exit)] == ["no trainer for 60 s"]


def test_a_stall_of_the_manager_is_no_absence_of_the_trainer() -> None:
    desk = Desk(settings(fleet__orphan_seconds=9.0))
    desk.open_run(reserved=False)
    desk(TrainerGone(TRAINER, "killed"), at=1.0)
    desk(Stalled(100.0), at=101.0)
    assert not desk.manager.over
    desk.tick(110.0)
    assert desk.manager.over


@pytest.mark.parametrize("end", ["trainer", "signal"])
def test_the_end_of_a_run_sends_everyone_home(end: str) -> None:
    desk = seeded()
    if end == "trainer":
        desk.trainer(m.EndRun(reason="done", over=True))
    else:
        desk(Shutdown("SIGTERM"))
    assert desk.sent(m.Leave, RESERVED) and TRAINER in desk.closed()
    assert [a.code for a in desk.actions if isinstance(a, Exit)] == [0]


@pytest.mark.parametrize("over", [False, True])
def test_tokens_are_kept_for_a_run_that_is_not_complete(over: bool) -> None:
    desk = seeded()
    desk.trainer(m.EndRun(reason="stopped", over=over))
    kept = [entry for a in desk.actions if isinstance(a, Append) for entry in a.entries]
    assert any(isinstance(entry, RunOver) for entry in kept) is over


def test_the_market_gives_and_takes() -> None:
    desk = seeded(manager__seeding=False)
    desk.publish(0)
    assert [a for a in desk(MachineAdded("m1")) if isinstance(a, Request)] == [request("local-1")]
    desk.grant("local-1")
    assert not desk(MachineRemoved("", notice=True)), "it has not even joined"
    desk.join_granted(A, "local-1")
    assert not [a for a in desk.actions if isinstance(a, Terminate)], "it is not at work"
    desk.tokens(A, [], in_flight=8)
    assert Terminate("local-1", GRACE_SECONDS) in desk.actions and desk.records("notice")
    assert desk.manager.status(0.0).instances[-1].state == "leaving"
    desk.server(A, m.Goodbye(reason="SIGTERM"))
    assert not [a for a in desk.exit("local-1", "0") if isinstance(a, Request)]
    assert request("local-2") in desk(MachineAdded(""))
    desk(MachineRemoved("m1", notice=False))
    assert Terminate("local-2", 0.0) in desk.actions


def test_the_fleet_begins_with_as_many_as_there_are_reserved_engines() -> None:
    """Algorithm 1: N_prem = N_resv, until a step has shown how many are worth having."""
    desk = Desk(settings(fleet__sizing="paper", fleet__max_instances=5))
    desk.open_run()
    desk.server(RESERVED + 1, server_hello(instance="trainer-2", reserved=True))
    started = []
    for number in range(4):
        started += [a for a in desk(MachineAdded(f"m{number}")) if isinstance(a, Request)]
    assert started == [request("local-1"), request("local-2")]


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
    (report,) = desk.sent(m.BatchReport)
    assert report.cost_dollars == pytest.approx(4 * 2 + 2 * 1)
    assert report.cost_between_dollars == 0.0
    assert report.instances_mean == pytest.approx(2 / 4)
    assert (report.instances_joined, report.instances_lost) == (1, 1)


def test_the_rows_that_a_run_keeps_add_up_to_all_that_was_paid() -> None:
    """Before the first step, between steps, while the trainer is away, and done twice."""
    desk = Desk(settings(manager__lease_seconds=1000.0))
    desk.open_run(reserved=False)
    rows: dict[int, float] = {}
    between: dict[int, float] = {}

    def train(step: int, until: float) -> None:
        desk.now = until
        desk.trainer(trained(step), stream)
        (report,) = desk.sent(m.BatchReport)
        rows[step], between[step] = report.cost_dollars, report.cost_between_dollars
        assert sum(rows.values()) == desk.manager.status(desk.now).cost_dollars == 2 * until

    stream = TRAINER
    desk.now = 3.0  # warm-up
    desk.begin(0, prompts=1)
    train(0, until=5.0)
    desk.now = 6.0  # saving, publishing
    desk.begin(1, prompts=1)
    train(1, until=7.0)
    desk(TrainerGone(TRAINER, "killed"))
    desk.now, stream = 9.0, 50
    hello = m.TrainerHello(run_id=RUN, window=None)
    desk.trainer(hello, stream)
    desk.trainer(begin_batch(1, 1, "d", prompts=1), stream)
    train(1, until=10.0)  # it was not durable: its row is written again
    desk.trainer(m.BatchCommitted(batch=1), stream)
    desk.trainer(begin_batch(2, 2, "d", prompts=1), stream)
    train(2, until=11.0)
    assert between == {0: 2 * 3.0, 1: 2 * (9.0 - 5.0), 2: 0.0}


@pytest.mark.parametrize("crash", [False, True])
def test_the_rows_that_a_run_keeps_add_up_to_all_servers_that_came_and_went(crash: bool) -> None:
    """Before the first step, between steps, while the trainer is away, and in a step that is done
    twice; also where another manager goes on."""
    desk = Desk(settings(manager__lease_seconds=1000.0))
    desk.open_run(reserved=False)
    rows: dict[int, tuple[int, int, int]] = {}

    def came(stream: int, *, goes: str) -> None:
        desk.join(stream)
        desk.server(stream, m.Notice(seconds=1.0, reason="the market")) if goes == "left" else None
        desk(ServerGone(stream, "killed")) if goes else None

    def train(step: int) -> None:
        desk.trainer(trained(step), stream)
        (report,) = desk.sent(m.BatchReport)
        rows[step] = (report.instances_joined, report.instances_lost, report.instances_left)
        status = desk.manager.status(desk.now)
        totals = tuple(map(sum, zip(*rows.values(), strict=True)))
        assert totals == (status.joined, status.lost, status.left)

    stream = TRAINER
    came(10, goes="killed")
    desk.begin(0, prompts=1)
    came(11, goes="left")
    train(0)
    came(12, goes="killed")
    desk.begin(1, prompts=1)
    came(13, goes="killed")
    train(1)
    desk(TrainerGone(TRAINER, "killed"))
    came(14, goes="left")
    if crash:
        desk.crash(at=1.0)
    stream = 50
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream)
    desk.trainer(begin_batch(1, 1, "d", prompts=1), stream)
    train(1)  # it was not durable: its row is written again
    assert rows == {0: (2, 2, 1), 1: (3, 3, 1)}


def test_a_reconnect_in_mid_step_restarts_no_clock() -> None:
    desk = seeded(manager__lease_seconds=1000.0)
    desk.now = 1.0
    desk.tokens(RESERVED, desk.requests(RESERVED), 1)
    desk(TrainerGone(TRAINER, "a cut connection"), at=2.0)
    desk.now = 3.0
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=50)
    desk.trainer(begin_batch(0, 0, "d"), stream=50)
    assert desk.manager.components.seeding.clock.total(3.0) == 3.0, "the window opened at 0"
    desk.now = 4.0
    desk.trainer(trained(0), stream=50)
    (report,) = desk.sent(m.BatchReport)
    assert (report.rollout_seconds, report.remote_wait_seconds) == (0.0, 4.0)
    assert report.seeding_window_seconds == 4.0


def test_servers_that_crash_once_they_are_ready_are_replaced_ever_more_rarely() -> None:
    desk = seeded(manager__seeding=False, manager__lease_seconds=1000.0)
    desk.publish(0)
    desk(MachineAdded("m1"))
    pauses = []
    for number in range(1, 4):
        name, stream = f"local-{number}", 100 + number
        desk.grant(name)
        desk.join_granted(stream, name)
        desk(ServerGone(stream, "killed"))
        desk.exit(name, "exit code -11")
        pauses.append(desk.manager.owners.pools[ANY_POOL].retry_at - desk.now)
        desk.tick(desk.manager.owners.pools[ANY_POOL].retry_at)
        assert request(f"local-{number + 1}") in desk.actions
    assert pauses == [0.5, 1.0, 2.0]
    desk.grant("local-4")
    desk.join_granted(104, "local-4")
    desk.tokens(104, desk.requests(104), 1)
    desk(ServerGone(104, "killed"))
    assert request("local-5") in desk.exit("local-4", "exit code -11")


def test_a_server_started_by_hand_is_not_the_fleets_whatever_its_name() -> None:
    desk = seeded(manager__seeding=False)
    desk.publish(0)
    desk(MachineAdded("m1"))
    desk.join(A, version=0, instance="local-1", nonce="77")
    desk.tokens(A, [], in_flight=8)
    desk.grant("local-1")
    assert len(desk.manager.view.fleet.starting) == 1, "it has not joined"
    desk(MachineRemoved("", notice=True))
    assert not [a for a in desk.actions if isinstance(a, Terminate)]
    desk.join_granted(B, "local-1")
    assert not desk.manager.view.fleet.starting
    desk.tokens(B, [], in_flight=8)
    assert Terminate("local-1", GRACE_SECONDS) in desk.actions
    states = {i.hello.nonce: i.state for i in desk.manager.view.roster if not i.reserved}
    assert states == {"77": "ready", nonce_of("local-1"): "leaving"}


def test_a_server_may_say_hello_before_it_is_known_to_have_started() -> None:
    desk = seeded()
    desk(MachineAdded("m1"))
    desk.join_granted(A, "local-1", None)
    assert desk.manager.view.fleet.servers["local-1"].joined
    desk.grant("local-1")
    assert not desk.manager.view.fleet.starting


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


def test_a_server_that_does_not_dial_again_is_replaced() -> None:
    """Stopped for good, it would keep its machine for ever."""
    desk = Desk()
    desk.open_run()
    desk(MachineAdded("m"))
    desk.grant("local-1")
    desk.join_granted(A, "local-1", None)
    desk(ServerGone(A, "cut"), at=5.0)
    desk.join_granted(B, "local-1", None)  # it does
    desk.server(B, m.Renew())
    desk.now = 6.0
    desk(ServerGone(B, "cut"), at=6.0)
    for second in range(7, 36):
        desk.tick(float(second))
        assert not [a for a in desk.actions if isinstance(a, Terminate)]
    desk.tick(36.0)
    assert [a for a in desk.actions if isinstance(a, Terminate)] == [Terminate("local-1", 0.0)]
    desk.exit("local-1", "killed")
    assert [a.instance for a in desk.actions if isinstance(a, Request)] == ["local-2"]


def test_a_refusal_is_recorded_and_tried_again_after_a_pause() -> None:
    desk = seeded()
    assert request("local-1") in desk(MachineAdded("m1"))
    assert not desk.manager.view.fleet.starting, "nothing is paid for yet"
    desk(Refused("local-1", nonce_of("local-1"), "no capacity"))
    (lost,) = desk.records("lost")
    assert lost.detail == {"reason": "refused: no capacity"}
    pause = desk.manager.owners.pools[ANY_POOL].retry_at - desk.now
    assert pause == 0.5 and request("local-2") in desk.tick(desk.now + pause)


def test_words_about_another_nonce_are_about_nobody() -> None:
    """As of an instance that a manager before this one had asked for under the same name."""
    desk = seeded()
    desk(MachineAdded("m1"))
    for event in (
        Granted("local-1", "of-another"),
        Refused("local-1", "of-another", "no capacity"),
        Exited("local-1", "of-another", "over"),
    ):
        assert not [a for a in desk(event) if isinstance(a, Request)]
        fleet = desk.manager.view.fleet
        assert fleet.standing == ["local-1"] and not fleet.starting


def test_what_is_granted_is_paid_for_until_it_is_over() -> None:
    """A dollar a second each; the reserved engine costs two."""
    desk = seeded(fleet__price_per_hour=3600.0, manager__lease_seconds=1e6)
    cost = desk.manager.view.roster.cost
    since = cost.total(desk.now) - 2.0 * desk.now
    desk(MachineAdded("m1"))
    desk.now += 10.0
    desk.grant("local-1")
    desk.now += 5.0
    desk.exit("local-1", "over")
    desk.now += 3.0
    desk.server(RESERVED, m.Renew())
    assert cost.total(desk.now) - 2.0 * desk.now == pytest.approx(since + 5.0)
