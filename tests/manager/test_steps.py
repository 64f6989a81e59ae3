"""Steps, versions, the seeding window and the trainer's returns, one event at a time."""

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    FromTrainer,
    ServerGone,
    TrainerGone,
)
from tests.manager.desk import RESERVED, TRAINER, Desk, seeded, trained
from tests.manager.fakes import RUN, begin_batch, hello, ready, settings

A, B = 10, 11


def test_reserved_engines_work_alone_where_there_are_no_others() -> None:
    desk = seeded()
    done = 0
    while (step := desk.manager.view.batch) and not step.finished:
        requests = desk.requests(RESERVED)
        assert requests
        desk.tokens(RESERVED, requests)
        done += len(desk.sent(m.FinishedRollout))
    assert done == 6
    (closed,) = desk.sent(m.WindowClosed)
    assert closed.reason == "all responses are finished"


def test_the_window_closes_when_time_is_up_and_another_is_ready() -> None:
    desk = seeded()
    requests = desk.requests(RESERVED)
    desk.publish(0)
    desk.join(A)
    desk.tick(0.4)  # T_seed is over, but nobody else is ready
    assert not desk.sent(m.Release)
    desk.now = 0.5
    desk.server(A, ready(0))
    (release,) = desk.sent(m.Release, RESERVED)
    assert m.unpack_ids(release.request_ids).tolist() == [r.request_id for r in requests]
    (closed,) = desk.sent(m.WindowClosed)
    assert closed.seconds == 0.5
    placed = {r.work.sample for r in desk.requests(A)}
    desk.tokens(RESERVED, requests, 1)  # the dispatch under way
    desk.server(RESERVED, m.Released(request_ids=release.request_ids))
    for request in desk.requests(A):
        assert len(request.response_tokens) == 4
        placed.add(request.work.sample)
    assert not desk.requests(RESERVED) and len(placed) >= 4


def test_the_window_stays_open_until_its_time() -> None:
    desk = seeded()
    desk.publish(0)
    desk.join(A, version=0)
    assert not desk.sent(m.WindowClosed)
    assert desk.manager.next_deadline() == 0.4
    desk.tick(0.4)
    assert desk.sent(m.WindowClosed)


def test_the_window_ends_early_when_reserved_engines_have_nothing_left() -> None:
    desk = seeded(manager__window_initial_seconds=100.0, manager__max_pending=4)
    requests = desk.requests(RESERVED)
    desk.publish(0)
    desk.join(A, version=0, slots=4)
    moving = m.unpack_ids(desk.sent(m.Release, RESERVED)[0].request_ids).tolist()
    assert len(moving) == 4  # all that were pending
    desk.server(RESERVED, m.Released(request_ids=m.pack_ids(moving)))
    assert len(desk.requests(A)) == 4
    desk.now = 1.0
    desk.tokens(RESERVED, [r for r in requests if r.request_id not in moving])
    (closed,) = desk.sent(m.WindowClosed)
    assert closed.reason == "reserved engines have nothing left" and closed.seconds == 1.0


def test_the_window_opens_again_when_the_last_one_goes() -> None:
    desk = seeded()
    requests = desk.requests(RESERVED)
    desk.publish(0)
    desk.join(A, version=0)
    desk.tick(0.4)
    (release,) = desk.sent(m.Release, RESERVED)
    desk.tokens(RESERVED, requests, 0)
    desk.server(RESERVED, m.Released(request_ids=release.request_ids))
    desk(ServerGone(A, "killed"))
    assert desk.requests(RESERVED) and desk.manager.status(0.4).window_open
    desk.join(B, version=0)
    assert desk.sent(m.Release, RESERVED) and desk.sent(m.WindowClosed)


def test_without_seeding_reserved_engines_help_only_while_nobody_is_ready() -> None:
    desk = seeded(manager__seeding=False)
    assert desk.requests(RESERVED)
    desk.publish(0)
    desk.join(A, version=0)
    assert desk.sent(m.Release, RESERVED)


def test_work_goes_only_to_those_with_the_newest_parameters() -> None:
    desk = Desk(settings(manager__seeding=False))
    desk.open_run()
    desk.publish(0)
    desk.join(A, version=0)
    desk.join(B, version=0)
    desk.begin(1)
    assert not desk.requests()
    desk.publish(1)
    assert len(desk.sent(m.Announce)) == 2
    desk.server(A, ready(0))  # it was said before the announcement was read
    assert not desk.requests()
    desk.server(A, ready(1))
    assert desk.requests(A) and not desk.requests(B)


def test_same_version_with_other_parameters_is_another_version() -> None:
    desk = Desk(settings(manager__seeding=False))
    desk.open_run()
    desk.publish(0, "old")
    desk.join(A)
    desk.server(A, ready(0, "old"))
    desk.publish(0, "old")
    assert not desk.sent(m.Announce), "it holds just that"
    desk.publish(0, "new")
    assert desk.sent(m.Announce, A)
    desk.begin(0, "old")
    assert not desk.requests()


def test_a_ready_that_crosses_an_announcement_of_the_same_number_is_not_of_it() -> None:
    desk = Desk(settings(manager__seeding=False))
    desk.open_run()
    desk.publish(0, "old")
    desk.join(A)
    desk.publish(0, "new")
    desk.begin(0, "new")
    desk.server(A, ready(0, "old"))
    assert not desk.requests()
    desk.server(A, ready(0, "new"))
    assert {g.params_digest for g in desk.sent(m.Generate, A)} == {"new"}


@pytest.mark.parametrize("crossing", [False, True])
def test_what_was_announced_in_between_may_be_on_its_way_into_the_engine(crossing: bool) -> None:
    """Parameters that were announced, replaced and announced again are waited for again."""
    desk = Desk(settings(manager__seeding=False))
    desk.open_run()
    desk.publish(0, "old")
    desk.join(A)
    if not crossing:
        desk.server(A, ready(0, "old"))
    desk.publish(0, "new")
    if crossing:
        desk.server(A, ready(0, "old"))
    desk.publish(0, "old")
    assert desk.sent(m.Announce, A)
    desk.begin(0, "old")
    assert not desk.requests()
    desk.server(A, ready(0, "old"))
    assert desk.requests(A)


def test_a_reserved_engine_works_only_with_the_parameters_of_the_step() -> None:
    desk = Desk()
    desk.open_run()
    desk.begin(0, "new")
    desk.server(RESERVED, ready(0, "old"))
    assert not desk.requests()
    desk.server(RESERVED, ready(0, "new"))
    assert desk.requests(RESERVED)


def test_a_new_step_cancels_the_work_of_the_old_one_everywhere() -> None:
    desk = seeded()
    old = desk.requests(RESERVED)
    desk.tokens(RESERVED, old, 0, in_flight=4, running=2)
    desk.begin(1)
    (release,) = desk.sent(m.Release, RESERVED)
    assert m.unpack_ids(release.request_ids).tolist() == [r.request_id for r in old]
    desk.tokens(RESERVED, old, 1)
    books = desk.manager.view.books
    assert books.lost == books.generated > 0
    desk.server(RESERVED, m.Released(request_ids=release.request_ids))
    assert desk.manager.view.kept == (1,)
    assert not any(r.held for r in desk.manager.view.roster)


def finish(desk: Desk, stream: int) -> list[m.FinishedRollout]:
    """Have a server finish the whole step."""
    results: list[m.FinishedRollout] = []
    while requests := desk.requests(stream):
        desk.tokens(stream, requests)
        results += desk.sent(m.FinishedRollout)
    return results


def test_a_returning_trainer_finds_its_tokens() -> None:
    desk = seeded()
    requests = desk.requests(RESERVED)
    desk.tokens(RESERVED, requests[:1])
    (before,) = desk.sent(m.FinishedRollout)
    desk(TrainerGone(TRAINER, "killed"))
    desk(ServerGone(RESERVED, "killed"))
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=50)
    assert desk.manager.view.kept == (0,)
    desk(FromTrainer(50, begin_batch(0, 0, "d")))
    assert desk.sent(m.FinishedRollout) == [before]
    assert desk.records("resumed")
    desk.server(51, hello(reserved=True))
    desk.server(51, ready(0))
    assert before.work.sample not in {r.work.sample for r in finish(desk, 51)}


@pytest.mark.parametrize("change", ["digest", "prompts", "seed"])
def test_a_trainer_that_wants_something_else_gets_it(change: str) -> None:
    desk = seeded()
    desk.tokens(RESERVED, desk.requests(RESERVED), 1)
    sampled = desk.manager.view.books.generated
    begin = begin_batch(0, 0, "e" if change == "digest" else "d")
    if change == "prompts":
        begin = begin_batch(0, 0, "d", prompts=2)
    if change == "seed":
        begin = msgspec.structs.replace(begin, seed=8)
    desk.trainer(begin)
    assert not desk.sent(m.FinishedRollout) and not desk.records("resumed")
    assert desk.manager.view.books.lost == sampled > 0


def test_a_finished_step_is_kept_until_it_is_durable() -> None:
    desk = seeded()
    finish(desk, RESERVED)
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    assert report.tokens_generated == report.tokens_delivered == report.tokens_reserved
    desk.begin(1)
    assert desk.manager.view.kept == (0, 1)
    desk.begin(0)
    assert len(desk.sent(m.FinishedRollout)) == 6
    desk.trainer(trained(0))
    assert desk.sent(m.BatchReport)[0].tokens_generated == report.tokens_generated
    desk.trainer(m.BatchCommitted(batch=0))
    assert desk.manager.view.kept == (1,)


def test_a_trainer_that_has_not_begun_gets_no_results() -> None:
    """It may be about to ask for tokens of other parameters."""
    desk = seeded()
    requests = desk.requests(RESERVED)
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=50)
    desk.tokens(RESERVED, requests[:1])
    assert not desk.sent(m.FinishedRollout)
    desk(FromTrainer(50, begin_batch(0, 0, "d")))
    assert len(desk.sent(m.FinishedRollout)) == 1


def test_the_window_learns_from_whole_steps_only() -> None:
    desk = Desk(settings(deterministic=False))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, version=0)
    begun = desk.begin(0, prompts=1)
    finish(desk, A)
    waited = m.BatchTrained(batch=0, train_wait_seconds=0.3, train_seconds=1.0)
    desk.now = 1.0
    desk.server(A, m.Renew())
    desk.trainer(waited)
    learnt = desk.sent(m.BatchReport)[0].window
    assert begun and learnt.seconds < 0.4  # 0.4 + (0.3 − 1.0) / 3
    desk.begin(0, prompts=1)  # the trainer is back
    desk.trainer(waited)
    assert desk.sent(m.BatchReport)[0].window == learnt
    old = m.WindowState(seconds=7.0, memory={}, instance_cap=4)
    desk.trainer(m.TrainerHello(run_id=RUN, window=old), stream=50)
    assert desk.sent(m.TrainerWelcome)[0].window == learnt, "the manager knows better"
