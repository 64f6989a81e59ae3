"""What a manager that was killed knows again, and how everybody goes on."""

import math

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import MachineAdded, Request
from rlboost_jax.manager.journal_entries import (
    BatchClosed,
    BatchOpened,
    Counted,
    Published,
    RunOver,
)
from tests.manager.desk import RESERVED, TRAINER, Desk, seeded, trained
from tests.manager.fakes import manifest, settings

A, B = 10, 11


def half_done() -> Desk:
    """Batch 0, three responses under way at A with four tokens each at most."""
    desk = Desk(settings(deterministic=False, manager__window_initial_seconds=1e-9))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0)
    desk.begin(0)
    desk.tokens(A, desk.requests(A), 4, in_flight=8, running=2)
    return desk


def heavy(version: int) -> m.Manifest:
    """Make a manifest of 30 GB."""
    return msgspec.structs.replace(manifest(version, "d"), piece_bytes=30 * 10**9)


def kept(desk: Desk) -> dict[int, list[int]]:
    step = desk.manager.view.batch
    assert step is not None
    return {r.sample: m.unpack_tokens(bytes(r.transcript.tokens)).tolist() for r in step.rollouts}


def test_every_token_is_there_and_is_gone_on_from() -> None:
    desk = half_done()
    before = kept(desk)
    assert sum(map(len, before.values())) > 8
    desk.crash(at=1.0)
    assert kept(desk) == before
    (found,) = desk.records("recovered")
    assert found.detail["tokens"] == sum(map(len, before.values()))
    desk.join(B, 0)
    for request in desk.requests(B):
        had = m.unpack_tokens(request.response_tokens).tolist()
        assert had == before[request.work.sample]


def test_a_batch_that_is_opened_anew_has_nothing_of_before() -> None:
    """The disk was full, so its deletion was not written (found by a random schedule)."""
    desk = half_done()
    (opened,) = (e for e in desk.entries if isinstance(e, BatchOpened))
    desk.entries.append(opened)
    desk.crash(at=1.0)
    assert set(kept(desk)) == set(range(6)) and not any(kept(desk).values())


def test_batches_that_were_cancelled_stay_so() -> None:
    """A trainer went back a step, to other work (found by a random schedule)."""
    desk = seeded()
    while not desk.manager.view.batch.finished:  # type: ignore[union-attr]
        desk.tokens(RESERVED, desk.requests(RESERVED))
    desk.trainer(trained(0))
    desk.publish(1)
    desk.begin(1)
    desk.publish(0, "other")
    desk.begin(0, "other")
    before = desk.manager.view.batches
    assert set(before) == {0}
    desk.crash(at=3.0)
    after = desk.manager.view.batches
    assert set(after) == {0} and after[0].books == before[0].books


def test_the_fleet_works_on_before_the_trainer_is_back() -> None:
    desk = half_done()
    desk.crash(at=1.0)
    assert desk.sent(m.FinishedRollout) == []
    desk.join(B, 0)
    assert desk.requests(B)
    assert desk.manager.next_deadline() is not None
    desk.trainer(m.TrainerHello(run_id="run", window=None))
    done = {r.sample for r in desk.manager.view.batch.rollouts if r.result}  # type: ignore[union-attr]
    desk.begin(0)
    assert {r.work.sample for r in desk.sent(m.FinishedRollout)} == done
    assert desk.records("resumed")


def test_a_trainer_that_does_not_come_back_is_waited_for_as_long_as_ever() -> None:
    desk = half_done()
    desk.crash(at=1.0)
    patience = desk.settings.fleet.orphan_seconds
    desk.tick(1.0 + patience - 0.1)
    assert not desk.manager.over
    desk.tick(1.0 + patience)
    assert desk.manager.over


def test_tokens_under_way_are_lost_with_the_manager_and_all_counts_agree() -> None:
    desk = half_done()
    books = desk.manager.view.books
    before = (books.generated, books.lost)
    desk.crash(at=1.0)
    books = desk.manager.view.books
    assert (books.generated, books.lost) == (before[0] + 8, before[1] + 8)


def test_money_goes_on_being_spent_while_there_is_no_manager() -> None:
    desk = half_done()
    desk.tick(1.0)
    rate = desk.manager.view.roster.cost.level
    assert rate == pytest.approx((3600 + 7200) / 3600)
    desk.crash(at=3.0)
    assert desk.manager.view.roster.cost.total(3.0) == pytest.approx(3.0 * rate)
    assert (desk.manager.view.roster.joined, desk.manager.view.roster.lost) == (1, 0)


def test_a_version_that_a_release_before_announced_is_not_announced_again() -> None:
    """Its manifest had the list itself; the trainer publishes it anew before it goes on."""
    desk = half_done()
    old = m.Manifest(version=0, directory=manifest(0, "d").directory, params_digest="d")
    entries = [Published(manifest=old) if isinstance(e, Published) else e for e in desk.entries]
    assert entries != desk.entries
    desk.entries = entries
    desk.crash(at=3.0)
    assert not desk.manager.view.manifests


def test_a_clock_that_begins_anew_costs_nothing() -> None:
    desk = half_done()
    desk.tick(1000.0)
    desk.crash(at=5.0)
    dollars = desk.manager.view.roster.cost.total(5.0)
    assert 0 <= dollars < math.inf
    step = desk.manager.view.batch
    assert step is not None and step.begun_at <= 5.0


def test_the_window_that_was_learnt_is_known() -> None:
    desk = seeded()
    while not desk.manager.view.batch.finished:  # type: ignore[union-attr]
        desk.tokens(RESERVED, desk.requests(RESERVED))
    desk.now = 2.0
    desk.trainer(trained(0))
    window = desk.manager.view.window
    desk.crash(at=3.0)
    stale = m.WindowState(seconds=99.0, memory={}, instance_cap=9)
    desk.trainer(m.TrainerHello(run_id="run", window=stale))
    (welcome,) = desk.sent(m.TrainerWelcome)
    assert welcome.window == window != stale


def test_a_step_is_reported_once_more_if_its_report_was_lost() -> None:
    desk = seeded()
    while not desk.manager.view.batch.finished:  # type: ignore[union-attr]
        desk.tokens(RESERVED, desk.requests(RESERVED))
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    desk.crash(at=3.0)
    desk.trainer(m.TrainerHello(run_id="run", window=None))
    desk.begin(0)
    assert len(desk.sent(m.FinishedRollout)) == 6
    desk.trainer(trained(0))
    (again,) = desk.sent(m.BatchReport)
    for name in ("tokens_generated", "tokens_delivered", "tokens_lost", "tokens_reserved"):
        assert getattr(again, name) == getattr(report, name)


def test_names_are_not_given_twice() -> None:
    desk = Desk()
    desk.open_run()
    desk.join(A, instance="")
    (first,) = desk.sent(m.Welcome, A)
    desk.crash(at=1.0)
    desk.join(B, instance="")
    (second,) = desk.sent(m.Welcome, B)
    assert first.instance != second.instance


def test_nor_are_names_of_servers() -> None:
    desk = Desk()
    desk.open_run()
    desk(MachineAdded("m"))
    (first,) = [a.instance for a in desk.actions if isinstance(a, Request)]
    desk.crash(at=1.0)  # before the provider could say that it had started it
    desk(MachineAdded("m"))
    (second,) = [a.instance for a in desk.actions if isinstance(a, Request)]
    assert first != second


@pytest.mark.parametrize("left_out", [Counted, BatchClosed])
def test_what_was_torn_off_leaves_no_account_open(left_out: type) -> None:
    desk = half_done()
    desk.entries = [e for e in desk.entries if not isinstance(e, left_out)]
    desk.crash(at=1.0)
    for step in desk.manager.view.batches.values():
        total = sum(rollout.transcript.num_tokens for rollout in step.rollouts)
        assert step.books.generated - step.books.lost == total


def test_tokens_behind_lost_ones_are_left_out() -> None:
    desk = half_done()
    request = next(r for r in desk.manager.view.batch.rollouts if r.placement.holder)  # type: ignore[union-attr]
    place = next(i for i, e in enumerate(desk.entries) if type(e).__name__ == "Collected")
    desk.tokens(A, [request.request()], 2)
    del desk.entries[place]
    desk.crash(at=1.0)
    assert set(map(len, kept(desk).values())) == {0}


def test_a_run_that_is_over_is_noted() -> None:
    desk = half_done()
    desk.trainer(m.EndRun(reason="done", over=True))
    assert desk.entries.count(RunOver()) == 1


def test_a_fresh_journal_is_no_recovery() -> None:
    desk = Desk()
    desk.crash(at=0.0)
    assert desk.actions == []
    desk.trainer(m.TrainerHello(run_id="run", window=None), stream=TRAINER)
    assert desk.sent(m.TrainerWelcome)


def test_what_a_pull_costs_is_known_again() -> None:
    """30 GB at two dollars per GB."""
    desk = Desk(settings(fleet__egress_dollars_per_gb=2.0))
    desk.open_run()
    desk.trainer(m.Publish(manifest=heavy(0)))
    assert desk.manager.components.sizing.prices(desk.now).pull == pytest.approx(60.0)
    desk.crash(1.0)
    assert desk.manager.components.sizing.prices(desk.now).pull == pytest.approx(60.0)


def test_pulls_are_paid_for_once_and_stay_so() -> None:
    """7200 $/h reserved, 3600 $/h an instance, 30 GB at two dollars per GB, or what of it came."""
    desk = Desk(settings(fleet__egress_dollars_per_gb=2.0, manager__lease_seconds=1000.0))
    desk.open_run()
    desk.trainer(m.Publish(manifest=heavy(0)))
    desk.join(A)
    desk.join(B)
    pulled = m.Ready(version=0, params_digest="d", seconds=1.0, fetched_bytes=30 * 10**9)
    desk.server(A, pulled)
    desk.server(A, pulled)  # it holds that already
    desk.server(A, msgspec.structs.replace(pulled, version=7))  # there is no such version
    desk.server(A, pulled)
    desk.server(RESERVED, pulled)
    desk.server(B, msgspec.structs.replace(pulled, fetched_bytes=10**9))  # an adapter
    assert desk.manager.status(desk.now).cost_dollars == pytest.approx(60.0 + 2.0)
    [record] = desk.records("pulled")
    assert record.detail["saved_bytes"] == 29 * 10**9
    desk.trainer(m.Publish(manifest=heavy(1)))
    desk.server(A, msgspec.structs.replace(pulled, version=1, fetched_bytes=2**50))  # a boast
    assert desk.manager.status(desk.now).cost_dollars == pytest.approx(122.0)
    desk.crash(desk.now)
    assert desk.manager.status(desk.now).cost_dollars == pytest.approx(122.0)
