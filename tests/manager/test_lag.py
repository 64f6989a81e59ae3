"""Batches that are begun ahead: several open at once, each with a version of its own.

With a lag of 1, batches 0 and 1 are sampled from version 0, batch 2 from version 1, and so on.
"""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import FromTrainer, ServerGone, TrainerGone
from rlboost_jax.manager.reducer import announcements, batch_checks
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.server_parameters import Parameters
from rlboost_jax.trust.peer_limits import MAX_OPEN_BATCHES
from tests.manager import fakes
from tests.manager.desk import RESERVED, TRAINER, Desk, trained
from tests.manager.fakes import RUN, batch, begin_batch, hello, manifest, ready

A, B, C = 10, 11, 12


def settings(**changes: Any) -> Settings:
    return fakes.settings(**{"lag": 1, **changes})


def begin(number: int, digest: str = "d", *, lag: int = 1, **sizes: int) -> m.BeginBatch:
    return begin_batch(number, max(0, number - lag), digest, **{"prompts": 1, **sizes})


def at_batch_1(**changes: Any) -> Desk:
    """Batch 0 is over; 1 is the oldest, of version 0, and 2 is begun, of version 1. A holds all of
    batch 1 (two rollouts), and B, to which that is announced, has version 1."""
    values = {"manager__seeding": False, "manager__lease_seconds": 100.0, "deterministic": False}
    desk = Desk(settings(**{**values, **changes}))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, version=0)
    desk.trainer(begin(0))
    first = desk.requests(A)
    desk.trainer(begin(1))
    second = desk.requests(A)
    assert [r.work.batch for r in (*first, *second)] == [0, 0, 1, 1]
    desk.tokens(A, first)
    desk.join(B)
    desk.publish(1)
    desk.trainer(trained(0))
    desk.trainer(begin(2))
    desk.work = second  # type: ignore[attr-defined]
    return desk


def work(desk: Desk) -> list[m.GenerateRequest]:
    """What A holds of batch 1."""
    return desk.work  # type: ignore[attr-defined,no-any-return]


def finished(desk: Desk) -> list[int]:
    return [r.work.batch for r in desk.sent(m.FinishedRollout)]


def announced_to(desk: Desk, stream: int) -> list[int]:
    return [announce.manifest.version for announce in desk.sent(m.Announce, stream)]


def test_work_of_the_oldest_batch_goes_first_and_the_next_gets_what_is_left() -> None:
    desk = Desk(settings(manager__seeding=False, deterministic=False))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.trainer(begin(0, prompts=2))
    desk.trainer(begin(1, prompts=2))
    assert list(desk.manager.view.open) == [0, 1]
    desk.join(A, version=0, slots=3)  # and two that may wait there
    assert [r.work.batch for r in desk.requests(A)] == [0, 0, 0, 0, 1]
    desk.join(B, version=0)
    assert [r.work.batch for r in desk.requests(B)] == [1, 1, 1]


def test_responses_are_delivered_as_they_end_whichever_batch_they_are_of() -> None:
    desk = at_batch_1()
    desk.server(B, ready(1))
    desk.tokens(B, desk.requests(B))
    assert finished(desk) == [2, 2]
    desk.tokens(A, work(desk))
    assert finished(desk) == [1, 1]


def test_a_newer_version_takes_nobody_from_the_work_of_an_older_batch() -> None:
    desk = at_batch_1()
    announced = desk.manager.view.instances[A].parameters.announced
    assert announced is not None and announced.version == 0
    desk.tokens(A, work(desk)[:1])
    assert not announced_to(desk, A)
    desk.tokens(A, work(desk)[1:])
    assert announced_to(desk, A) == [1], "nothing is left for it"


def test_who_has_nothing_to_do_goes_on_to_the_next_batch() -> None:
    desk = at_batch_1()
    announced = desk.manager.view.instances[B].parameters.announced
    assert announced is not None and announced.version == 1
    desk.server(B, ready(1))
    assert [r.work.batch for r in desk.requests(B)] == [2, 2]


def test_who_joins_late_pulls_the_version_that_there_is_work_for() -> None:
    desk = at_batch_1()
    desk(ServerGone(A, "killed"))
    assert announced_to(desk, B) == [0]
    desk.join(C)
    assert announced_to(desk, C) == [1], "B has slots for all of the oldest batch"
    desk(ServerGone(B, "killed"))
    assert announced_to(desk, C) == [0]
    desk.server(C, ready(0))
    assert [r.work.batch for r in desk.requests(C)] == [1, 1]
    desk.join(C + 1)
    assert announced_to(desk, C + 1) == [1]


def test_rollouts_of_a_lost_server_find_somebody() -> None:
    """One that works on a later batch goes back, and nothing of either batch is lost."""
    desk = at_batch_1()
    desk.server(B, ready(1))
    later = desk.requests(B)
    desk.tokens(B, later, 1)
    desk.tokens(A, work(desk), 1)
    desk(ServerGone(A, "killed"))
    assert announced_to(desk, B) == [0]
    desk.server(B, m.Released(request_ids=m.pack_ids([r.request_id for r in later])))
    assert announced_to(desk, B) == []
    desk.server(B, ready(0))
    again = desk.requests(B)
    assert [(r.work.batch, r.version, len(r.response_tokens)) for r in again] == [(1, 0, 4)] * 2
    desk.tokens(B, again)
    assert finished(desk) == [1, 1] and announced_to(desk, B) == [1]
    desk.server(B, ready(1))
    again = desk.requests(B)
    assert [(r.work.batch, len(r.response_tokens)) for r in again] == [(2, 4)] * 2


def test_an_idle_server_does_not_wait_for_one_that_may_never_arrive() -> None:
    """C is to sample what a lost server had left, and its device hangs: B, which has nothing to do
    until the oldest batch is over, goes back for it."""
    desk = at_batch_1()
    desk.server(B, ready(1))
    later = desk.requests(B)
    desk.join(C)
    desk(ServerGone(A, "killed"))
    assert announced_to(desk, C) == [0] and announced_to(desk, B) == []
    desk.tokens(B, later)
    assert announced_to(desk, B) == [0]
    desk.server(B, ready(0))
    desk.tokens(B, desk.requests(B))
    assert desk.manager.view.open[1].finished


def test_a_token_of_another_version_than_its_batch_is_lost() -> None:
    desk = at_batch_1()
    row = [(work(desk)[0].request_id, [1])]
    lost = desk.manager.view.books.lost
    sequence = desk.manager.view.instances[A].activity.next_sequence
    desk.server(A, batch(sequence, 1, row))
    rollout = desk.manager.view.open[1].rollouts[0]
    assert rollout.transcript.num_tokens == 0
    assert desk.manager.view.books.lost == lost + 1


def test_a_batch_has_its_turn_when_the_one_before_is_over() -> None:
    """Its window and its report begin then; what was sampled before is counted with it."""
    desk = at_batch_1()
    desk.now = 5.0
    desk.server(B, ready(1))
    desk.tokens(B, desk.requests(B))
    desk.now = 6.0
    desk.tokens(A, work(desk))
    desk.now = 7.0
    desk.trainer(trained(1))
    (first,) = desk.sent(m.BatchReport)
    assert first.rollout_seconds + first.remote_wait_seconds == 7.0
    (begun,) = desk.records("begun")
    assert begun.step == 2
    (closed,) = desk.sent(m.WindowClosed)
    assert (closed.batch, closed.reason) == (2, "all responses are finished")
    desk.now = 9.0
    desk.trainer(trained(2))
    (second,) = desk.sent(m.BatchReport)
    assert second.tokens_generated == second.tokens_delivered > 0
    assert (second.rollout_seconds, second.remote_wait_seconds) == (0.0, 2.0)


def test_nobody_waits_for_the_learner_who_works_on_a_later_batch() -> None:
    desk = at_batch_1()
    desk.tokens(A, work(desk))
    desk.server(B, ready(1))
    desk.now = 1.0
    desk.tokens(B, desk.requests(B))
    desk.now = 1.5
    desk.trainer(trained(1))
    (report,) = desk.sent(m.BatchReport)
    assert (report.rollout_seconds, report.remote_wait_seconds) == (1.0, 0.5)


def test_batches_are_trained_in_their_order() -> None:
    desk = at_batch_1()
    desk.trainer(trained(2))
    assert "not the oldest" in desk.sent(m.RequestRefused)[0].reason


def test_a_batch_may_be_begun_before_the_update_that_it_follows_is_reported() -> None:
    desk = at_batch_1()
    desk.tokens(A, work(desk))
    desk.publish(2)
    desk.trainer(begin(3))
    assert list(desk.manager.view.open) == [1, 2, 3]
    desk.trainer(trained(1))
    assert desk.sent(m.BatchReport) and list(desk.manager.view.open) == [2, 3]
    desk.trainer(begin(4))  # of version 3: batch 2 is over, and only that need not be reported yet
    assert list(desk.manager.view.open) == [2, 3, 4]
    desk.trainer(begin(5))
    assert list(desk.manager.view.open) == [3, 4, 5]


def test_a_returned_trainer_gets_the_results_of_all_that_it_begins_again() -> None:
    desk = at_batch_1()
    desk.server(B, ready(1))
    desk.tokens(B, desk.requests(B))
    desk.tokens(A, work(desk)[:1])
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=50)
    desk(FromTrainer(50, begin(1)))
    assert finished(desk) == [1]
    assert list(desk.manager.view.open) == [1]
    desk.tokens(A, work(desk)[1:])
    assert finished(desk) == [1]
    desk(FromTrainer(50, begin(2)))
    assert finished(desk) == [2, 2] and len(desk.records("resumed")) == 1
    assert list(desk.manager.view.open) == [1, 2]


@pytest.mark.parametrize("again", [False, True])
def test_what_a_trainer_went_back_on_is_no_version_any_more(again: bool) -> None:
    """Unless it has published that since it came: then its update is reported next."""
    desk = at_batch_1()
    desk.publish(2)
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=TRAINER + 1)
    if again:
        desk.trainer(m.Publish(manifest=manifest(2, "d")), stream=TRAINER + 1)
    desk.trainer(begin(1), stream=TRAINER + 1)
    newest = desk.manager.owners.versions.newest
    assert newest is not None and newest.version == (2 if again else 1)


def test_what_a_trainer_begins_first_is_its_oldest() -> None:
    """It sends nothing of a batch before that, whose end a journal may not have."""
    desk = at_batch_1()
    desk(TrainerGone(TRAINER, "cut"))
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=50)
    desk(FromTrainer(50, begin(2)))
    assert list(desk.manager.view.open) == [2]
    (release,) = desk.sent(m.Release, A)
    assert len(m.unpack_ids(release.request_ids)) == 2


def test_a_batch_begun_with_something_else_is_cancelled_with_all_later_ones() -> None:
    desk = at_batch_1()
    desk.server(B, ready(1))
    desk.tokens(B, desk.requests(B), 1)
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=50)
    desk(FromTrainer(50, begin(1, "other")))
    assert desk.manager.view.kept == (0, 1)
    assert desk.sent(m.Release, A) and desk.sent(m.Release, B)
    assert desk.manager.view.books.lost == desk.manager.view.books.generated > 0


def test_a_later_batch_begun_with_something_else_leaves_the_oldest_alone() -> None:
    desk = at_batch_1()
    desk.trainer(begin(2, "other"))
    assert list(desk.manager.view.open) == [1, 2]
    assert not desk.sent(m.Release, A)


def test_no_more_batches_are_open_than_the_limit() -> None:
    desk = Desk(settings(deterministic=False))
    desk.open_run(reserved=False)
    for number in range(MAX_OPEN_BATCHES):
        desk.trainer(begin(number, lag=MAX_OPEN_BATCHES))
    assert len(desk.manager.view.open) == MAX_OPEN_BATCHES
    desk.trainer(begin(MAX_OPEN_BATCHES, lag=MAX_OPEN_BATCHES))
    assert "lower algorithm.lag" in desk.sent(m.RequestRefused)[0].reason
    assert len(desk.manager.view.open) == MAX_OPEN_BATCHES


@pytest.mark.parametrize("extends", [False, True])
def test_all_open_batches_count_towards_the_limit_of_responses(
    extends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_checks, "MAX_ROLLOUTS", 5)
    desk = Desk(settings(deterministic=False))
    desk.open_run(reserved=False)
    desk.trainer(begin(0))
    desk.trainer(begin(1, prompts=1 if extends else 2))
    if extends:
        assert not desk.sent(m.RequestRefused)
        more = m.PromptRequest(prompt=1, tokens=m.pack_tokens([1]))
        desk.trainer(m.ExtendBatch(batch=1, prompts=(more,)))
    assert "beside 2 of open batches" in desk.sent(m.RequestRefused)[0].reason


def test_a_later_batch_can_grow() -> None:
    desk = at_batch_1()
    more = m.PromptRequest(prompt=1, tokens=m.pack_tokens([1]))
    desk.trainer(m.ExtendBatch(batch=2, prompts=(more,)))
    desk.server(B, ready(1))
    assert [r.work.batch for r in desk.requests(B)] == [2] * 4


def test_snapshots_that_open_batches_need_stay() -> None:
    desk = at_batch_1()
    desk.tokens(A, work(desk))
    desk.server(A, ready(1))
    desk.server(B, ready(1))
    assert desk.manager.view.versions_in_use == (0, 1)
    assert 0 in desk.manager.view.manifests


def test_who_goes_back_is_paid_for_again() -> None:
    desk = at_batch_1(fleet__egress_dollars_per_gb=1.0)
    for version in (0, 1):
        known = msgspec.structs.replace(manifest(version, "d"), piece_bytes=10**9)
        desk.trainer(m.Publish(manifest=known))
    pulled = dict(seconds=0.0, fetched_bytes=10**9)

    def dollars(version: int) -> float:
        before = desk.manager.owners.roster.cost.total(desk.now)
        desk.server(B, m.Ready(version=version, params_digest="d", **pulled))
        return desk.manager.owners.roster.cost.total(desk.now) - before

    assert dollars(1) == pytest.approx(1.0)
    assert dollars(1) == pytest.approx(0.0)
    desk(ServerGone(A, "killed"))
    assert announced_to(desk, B) == [0]
    assert dollars(0) == pytest.approx(1.0)


def test_what_the_trainers_engine_holds_is_announced() -> None:
    """Without a lag the trainer hands it each version."""
    for lag, announced in ((0, []), (1, [0])):
        desk = Desk(settings(deterministic=False, lag=lag))
        desk.open_run()
        desk.publish(0)
        assert announced_to(desk, RESERVED) == announced


def test_the_trainers_engine_works_on_the_oldest_batch_while_that_has_work_for_it() -> None:
    desk = Desk(settings(deterministic=False, lag=1))
    desk.open_run()
    desk.publish(0)
    desk.trainer(begin(0))
    desk.trainer(begin(1))
    desk.server(RESERVED, ready(0))
    requests = desk.requests(RESERVED)
    assert [r.work.batch for r in requests] == [0, 0, 1, 1]
    desk.tokens(RESERVED, requests[:2])
    desk.publish(1)
    desk.trainer(trained(0))
    desk.trainer(begin(2))
    assert not announced_to(desk, RESERVED), "it has all of batch 1"
    assert desk.manager.view.window_open


def test_the_trainers_engine_works_ahead_until_its_window_is_over() -> None:
    desk = Desk(settings(deterministic=False, lag=1))
    desk.open_run()
    desk.publish(0)
    desk.join(A, version=0, slots=4)
    desk.trainer(begin(0))
    first = desk.requests(A)
    desk.trainer(begin(1))
    desk.server(RESERVED, ready(0))
    desk.tokens(A, first)
    desk.publish(1)
    assert not desk.sent(m.Announce), "nobody is needed at version 1 yet"
    assert [each.manifest.version for each in desk.sent(m.Prefetch, A)] == [1]
    assert not desk.sent(m.Prefetch, RESERVED), "it has no line to wait for"
    desk.trainer(trained(0))
    assert announced_to(desk, RESERVED) == [1]
    desk.trainer(begin(2))
    desk.server(RESERVED, ready(1))
    ahead = desk.requests(RESERVED)
    assert [r.work.batch for r in ahead] == [2, 2]
    desk.tick(desk.now + 0.5)
    assert desk.sent(m.WindowClosed)
    (release,) = desk.sent(m.Release, RESERVED)
    assert m.unpack_ids(release.request_ids).tolist() == [r.request_id for r in ahead]


def test_a_liars_unfinished_work_of_all_open_batches_is_done_again() -> None:
    desk = Desk(settings(manager__seeding=False, deterministic=False))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, version=0, slots=4)
    desk.trainer(begin(0))
    first = desk.requests(A)
    desk.trainer(begin(1))
    second = desk.requests(A)
    desk.tokens(A, first[:1])
    (result,) = desk.sent(m.FinishedRollout)
    desk.tokens(A, second, 1)
    desk.join(B, version=0)
    doubt = m.Doubt(
        batch=0,
        samples=m.pack_ids([result.work.sample]),
        attempts=m.pack_ids([0]),
        positions=m.pack_ids([0]),
        gap=9.0,
    )
    desk.trainer(doubt)
    again = desk.requests(B)
    assert [r.work.batch for r in again] == [0, 0, 1, 1]
    assert not any(r.response_tokens for r in again)


def test_a_manager_that_follows_knows_all_open_batches() -> None:
    desk = at_batch_1()
    desk.server(B, ready(1))
    desk.tokens(B, desk.requests(B), 1)
    desk.now = 3.0
    desk.tokens(A, work(desk), 1)
    begun_at = desk.manager.view.open[1].begun_at
    desk.crash(at=4.0)
    view = desk.manager.view
    assert list(view.open) == [1, 2]
    assert view.open[1].begun_at == begun_at
    tokens = {n: [r.transcript.num_tokens for r in b.rollouts] for n, b in view.open.items()}
    assert tokens == {1: [1, 1], 2: [1, 1]}
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=50)
    desk(FromTrainer(50, begin(1)))
    desk(FromTrainer(50, begin(2)))
    desk.server(60, hello(instance="late"))
    assert announced_to(desk, 60) == [0], "the oldest first"
    desk.server(60, ready(0))
    assert [(r.work.batch, len(r.response_tokens)) for r in desk.requests(60)] == [(1, 4)] * 2


def test_a_turn_that_has_begun_is_known_to_the_manager_that_follows() -> None:
    desk = at_batch_1()
    desk.tokens(A, work(desk))
    desk.now = 2.5
    desk.trainer(trained(1))
    desk.crash(at=4.0)
    assert list(desk.manager.view.open) == [2]
    assert desk.manager.view.open[2].begun_at == 2.5


def test_a_free_reserved_slot_asks_for_no_work_of_a_later_batch() -> None:
    """It could not go there, and would be placed where it was, time and again."""
    desk = Desk(settings(deterministic=False))
    desk.open_run()
    desk.publish(0)
    desk.join(A, version=0, slots=2)  # and two that may wait there
    desk.trainer(begin(0))
    desk.trainer(begin(1))
    assert [r.work.batch for r in desk.requests(A)] == [1, 1]
    held = desk.manager.view.instances[A].held.values()
    assert [r.sequences.work.batch for r in held] == [0, 0, 1, 1], "two are pending"
    desk.server(RESERVED, ready(0))  # two slots, and its window is open
    assert not desk.sent(m.Release)


@pytest.mark.parametrize("slots", [3, 4])
def test_the_last_responses_of_a_batch_are_gathered_where_the_next_has_work(slots: int) -> None:
    """At one instance, if it has slots for all four, so that the other goes on."""
    desk = Desk(settings(manager__seeding=False, deterministic=False))
    desk.open_run(reserved=False)
    desk.publish(0)
    for server in (A, B):
        desk.join(server, version=0, slots=slots)
    desk.trainer(begin(0))
    first = {server: desk.requests(server) for server in (A, B)}
    desk.trainer(begin(1, prompts=2))
    held = {server: desk.requests(server) for server in (A, B)}
    assert [len(requests) for requests in held.values()] == [2, 2]
    for server, requests in first.items():
        desk.tokens(server, requests)
    desk.tokens(A, held[A], 1)
    desk.publish(1)
    desk.trainer(trained(0))
    desk.trainer(begin(2))
    assert (announced_to(desk, A), announced_to(desk, B)) == ([], [1] if slots == 4 else [])
    if slots == 4:
        ids = m.pack_ids([r.request_id for r in held[B]])
        desk.server(B, m.Released(request_ids=ids))
        assert [r.work for r in desk.requests(A)] == [r.work for r in held[B]]
        desk.server(B, ready(1))
        assert [r.work.batch for r in desk.requests(B)] == [2, 2]


def test_an_instance_counts_for_the_oldest_batch_that_it_has_rollouts_of() -> None:
    """Whichever it was given first: what it still gives back may be of a newer one."""
    older, newer = object(), object()
    held = {1: SimpleNamespace(batch=newer), 2: SimpleNamespace(batch=older)}
    parameters = Parameters()
    parameters.announce(manifest(0, "d"), held=False, back=False)
    instance: Any = SimpleNamespace(held=held, parameters=parameters, last_room=2, reserved=False)
    places: Any = {older: 0, newer: 1}
    assert announcements._holder(instance, places, [0, 1]).holds == 0
