"""Responses whose turn is over: parked, asked about, answered, and gone on with."""

from typing import Any

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone, TrainerGone
from rlboost_jax.manager.journal_entries import Answered
from rlboost_jax.manager.state.rollouts import Rollout
from tests.manager.desk import TRAINER, Desk
from tests.manager.fakes import MAX_TOKENS, ROUTING, STOP, VOCAB, batch, logprob, routes, settings
from tests.manager.reducer.test_untrusted_servers import doubt

A, B = 10, 11
GIVEN = (7, STOP, 9)  # stop ids count in no one's tokens but the policy's
ROOM = 6  # for given tokens, in a slot


def parked(turns: int = 2, *, servers: int = 1, **changes: Any) -> Desk:
    """Batch 0: sample 0 at A, in its first turn; no other responses."""
    quick = {"deterministic": False, "manager__window_initial_seconds": 1e-9}
    desk = Desk(settings(**quick, slot_tokens=3 + MAX_TOKENS + ROOM, **changes))
    desk.open_run(reserved=False)
    desk.publish(0)
    for stream in (A, B)[:servers]:
        desk.join(stream, 0, slot_tokens=64, nonce=str(stream))
    desk.begin(0, prompts=1, group_size=1, turns=turns)
    (request,) = desk.requests(A)
    say(desk, A, request, [5, 6, STOP])
    return desk


def say(desk: Desk, stream: int, request: m.GenerateRequest, row: list[int]) -> None:
    """The server samples these."""
    sequence = desk._sequence.get(stream, 0)
    desk._sequence[stream] = sequence + 1
    desk.server(stream, batch(sequence, 0, [(request.request_id, row)]))


def only(desk: Desk) -> Rollout:
    step = desk.manager.view.batches[0]
    return step.rollouts[0]


def reply(desk: Desk, tokens: tuple[int, ...] = GIVEN, **changes: Any) -> m.Answer:
    fields = {"attempt": 0, "turn": 0, "over": False, **changes}
    answer = m.Answer(work=only(desk).sequences.work, tokens=m.pack_tokens(tokens), **fields)
    desk.trainer(answer)
    return answer


def test_a_turn_that_ends_is_asked_about_and_goes_on_where_it_was() -> None:
    desk = parked(servers=2)
    (question,) = desk.sent(m.Parked, TRAINER)
    assert (question.attempt, question.turn, question.runs) == (0, 0, ())
    assert m.unpack_tokens(question.tokens).tolist() == [5, 6, STOP]
    assert question.logprobs == m.pack_logprobs([logprob(t) for t in (5, 6, STOP)])
    assert not desk.sent(m.FinishedRollout)
    step = desk.manager.view.batches[0]
    assert (step.num_waiting, step.num_parked, step.finished) == (0, 1, False)
    assert not desk.manager.view.instances[A].held
    reply(desk)
    (request,) = desk.requests(A)
    assert request.runs == (3, 3)
    assert m.unpack_tokens(request.response_tokens).tolist() == [5, 6, STOP, *GIVEN]
    say(desk, A, request, [8, STOP, 1, 2])
    (result,) = desk.sent(m.FinishedRollout, TRAINER)
    assert m.unpack_tokens(result.tokens).tolist() == [5, 6, STOP, *GIVEN, 8, STOP]
    assert (result.runs, result.versions) == ((3, 3, 2), ((0, 5),))
    assert result.logprobs == m.pack_logprobs([logprob(t) for t in (5, 6, STOP, 8, STOP)])
    assert result.instances == ("server-10",)
    report = desk.trainer(m.BatchTrained(batch=0, train_wait_seconds=0, train_seconds=1))
    (report,) = desk.sent(m.BatchReport)
    assert (report.tokens_delivered, report.tokens_lost) == (5, 2), "given tokens are nobody's"


def test_it_goes_elsewhere_where_its_server_is_gone_or_full() -> None:
    gone = parked(servers=2)
    gone(ServerGone(A, "killed"))
    reply(gone)
    assert [r.runs for r in gone.requests(B)] == [(3, 3)]
    nobody = parked()
    nobody(ServerGone(A, "killed"))
    reply(nobody)
    assert nobody.manager.view.batches[0].num_waiting == 1
    nobody.join(B, 0, slot_tokens=64, nonce="b")
    assert [r.runs for r in nobody.requests(B)] == [(3, 3)]


@pytest.mark.parametrize("changes", [{"turn": 1}, {"attempt": 1}])
def test_what_was_not_asked_changes_nothing(changes: dict[str, int]) -> None:
    desk = parked()
    reply(desk, **changes)
    assert only(desk).parked and not desk.sent(m.Generate)


def test_an_answer_that_comes_twice_counts_once() -> None:
    desk = parked()
    reply(desk)
    reply(desk, (1, 2))
    assert m.unpack_tokens(bytes(only(desk).transcript.tokens)).tolist() == [5, 6, STOP, *GIVEN]
    assert [type(e) for e in desk.entries].count(Answered) == 1


def test_the_last_turn_is_not_asked_about() -> None:
    for turns, asked in ((1, 0), (2, 1)):
        desk = parked(turns)
        assert len(desk.sent(m.Parked)) == asked
        assert len(desk.sent(m.FinishedRollout)) == 1 - asked


def test_nor_is_one_after_which_nothing_may_be_sampled() -> None:
    desk = parked(turns=3)
    reply(desk)
    (request,) = desk.requests()
    say(desk, A, request, [1] * (MAX_TOKENS - 4) + [STOP])
    assert desk.sent(m.FinishedRollout) and not desk.sent(m.Parked)


@pytest.mark.parametrize(
    ("count", "over", "tokens"), [(ROOM, True, ROOM), (ROOM + 1, False, 0), (0, True, 0)]
)
def test_it_is_over_when_that_is_said_or_no_room_is_left(
    count: int, over: bool, tokens: int
) -> None:
    """The slot must hold what was given and all that may be sampled: 3 of 12 tokens are."""
    desk = parked()
    reply(desk, (3,) * count, over=over)
    (result,) = desk.sent(m.FinishedRollout)
    assert result.runs == ((3, tokens) if tokens else ())
    assert not desk.sent(m.Generate)
    desk.crash(at=1.0)
    assert only(desk).result == result


def test_what_fits_to_the_last_token_goes_on() -> None:
    desk = parked()
    reply(desk, (3,) * ROOM)
    assert desk.requests()


@pytest.mark.parametrize(
    ("data", "over", "why"),
    [
        (m.pack_tokens([VOCAB]), False, "token 64"),
        (m.pack_tokens([-1]), True, "token -1"),
        (b"", False, "is empty"),
        (b"12345", False, "5 bytes"),
    ],
)
def test_what_nothing_can_go_on_with_is_refused(data: bytes, over: bool, why: str) -> None:
    desk = parked()
    work = only(desk).sequences.work
    desk.trainer(m.Answer(work=work, attempt=0, turn=0, tokens=data, over=over))
    (refused,) = desk.sent(m.RequestRefused)
    assert why in refused.reason
    assert only(desk).parked


def test_a_trainer_that_comes_back_is_asked_again() -> None:
    desk = parked()
    (question,) = desk.sent(m.Parked)
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id="run", window=None), stream=5)
    begin = desk.manager.view.batches[0].begin
    assert not desk.sent(m.Parked), "it has not said yet what it wants"
    desk.trainer(begin, stream=5)
    assert desk.sent(m.Parked, 5) == [question]


def test_a_manager_that_goes_on_knows_what_is_parked_and_what_was_answered() -> None:
    desk = parked()
    (question,) = desk.sent(m.Parked)
    desk.crash(at=1.0)
    begin = desk.manager.view.batches[0].begin
    desk.trainer(m.TrainerHello(run_id="run", window=None))
    desk.trainer(begin)
    assert desk.sent(m.Parked) == [question]
    reply(desk)
    desk.crash(at=2.0)
    assert not only(desk).parked
    assert m.unpack_tokens(bytes(only(desk).transcript.tokens)).tolist() == [5, 6, STOP, *GIVEN]
    desk.publish(0)
    desk.join(A, 0, slot_tokens=64)
    assert [r.runs for r in desk.requests(A)] == [(3, 3)]


def test_tokens_after_an_answer_that_was_lost_are_lost_with_it() -> None:
    desk = parked()
    reply(desk)
    (request,) = desk.requests()
    say(desk, A, request, [8])
    desk.entries = [e for e in desk.entries if not isinstance(e, Answered)]
    desk.crash(at=1.0)
    assert only(desk).parked
    assert m.unpack_tokens(bytes(only(desk).transcript.tokens)).tolist() == [5, 6, STOP]


def test_a_doubt_drops_the_answers_after_it() -> None:
    """And an answer that was on its way is known to be late."""
    desk = parked(servers=2)
    reply(desk)
    (request,) = desk.requests(A)
    say(desk, A, request, [8, STOP])
    desk.trainer(doubt((0, 1)))
    (again,) = desk.requests(B)
    assert (again.runs, again.response_tokens) == ((), b"")
    reply(desk)
    assert not desk.sent(m.Generate)
    say(desk, B, again, [4, STOP])
    (question,) = desk.sent(m.Parked)
    assert (question.attempt, question.turn) == (1, 0)
    reply(desk)
    assert only(desk).parked, "of the attempt before"
    before = bytes(only(desk).transcript.tokens)
    desk.crash(at=1.0)
    assert only(desk).awaits(0, 1, 0) and bytes(only(desk).transcript.tokens) == before
    desk.trainer(m.TrainerHello(run_id="run", window=None))
    desk.trainer(desk.manager.view.batches[0].begin)
    reply(desk, attempt=1)
    assert not only(desk).parked


def test_a_doubt_of_the_second_turn_keeps_what_was_said_before_it() -> None:
    desk = parked(servers=2)
    desk(ServerGone(A, "killed"))
    reply(desk)
    (request,) = desk.requests(B)
    say(desk, B, request, [8, STOP])
    desk.trainer(doubt((0, 7)))
    assert only(desk).transcript.turn == 1
    assert m.unpack_tokens(bytes(only(desk).transcript.tokens)).tolist() == [5, 6, STOP, *GIVEN]


def test_nobody_is_blamed_for_what_was_given() -> None:
    desk = parked()
    reply(desk)
    (request,) = desk.requests(A)
    say(desk, A, request, [8, STOP])
    desk.trainer(doubt((0, 4)))
    assert "was given" in desk.sent(m.RequestRefused)[0].reason


def test_a_batch_that_is_trained_asks_no_more() -> None:
    desk = parked()
    desk.trainer(m.BatchTrained(batch=0, train_wait_seconds=0, train_seconds=1))
    assert desk.sent(m.BatchReport)[0].tokens_lost == 3
    assert desk.manager.view.batches[0].num_parked == 0
    desk.crash(at=1.0)
    assert not desk.manager.view.batches[0].rollouts


def test_routes_of_given_tokens_come_with_the_next_turn() -> None:
    quick = {"deterministic": False, "manager__window_initial_seconds": 1e-9, "routing": ROUTING}
    desk = Desk(settings(**quick, slot_tokens=3 + MAX_TOKENS + ROOM))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0, slot_tokens=64)
    desk.begin(0, prompts=1, group_size=1, turns=2)
    (request,) = desk.requests(A)
    desk.server(A, batch(0, 0, [(request.request_id, [5, 6, STOP])], leads=[2]))
    reply(desk)
    assert only(desk).transcript.lead == 3
    (request,) = desk.requests(A)
    desk.server(A, batch(1, 0, [(request.request_id, [8])], leads=[3]))
    desk.crash(at=1.0)
    assert (only(desk).transcript.lead, only(desk).transcript.num_tokens) == (0, 7)
    desk.publish(0)
    desk.trainer(m.TrainerHello(run_id="run", window=None))
    desk.trainer(desk.manager.view.batches[0].begin)
    desk.join(A, 0, slot_tokens=64)
    (request,) = desk.requests(A)
    desk.server(A, batch(0, 0, [(request.request_id, [STOP])], leads=[0]))
    (result,) = desk.sent(m.RoutedRollout)
    assert result.routes == routes(2, [5, 6, STOP]) + routes(3, [8, STOP])
