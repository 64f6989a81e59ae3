"""Responses of several sequences: begun one after the other, cut together, recovered, counted."""

from typing import Any

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone, TrainerGone
from rlboost_jax.sequences.identities import Work
from rlboost_jax.trust.peer_limits import MAX_TURNS
from tests.manager.desk import TRAINER, Desk
from tests.manager.fakes import MAX_TOKENS, ROUTING, STOP, VOCAB, batch, logprob, routes, settings
from tests.manager.test_parked import ROOM, A, B, only, parked, reply, say

NEXT = (4, 2, 4, 2)  # the second sequence's prompt
FIRST, SECOND = [5, 6, STOP], [8, 9, STOP]


def following(turns: int = 4, *, servers: int = 1, **changes: Any) -> tuple[Desk, Any]:
    """The first sequence of sample 0 is over; A has begun the second. And what was sent."""
    desk = parked(turns, servers=servers, **changes)
    reply(desk, (), over=True, prompt=m.pack_tokens(NEXT))
    return desk, desk.actions


def second_parked(**changes: Any) -> Desk:
    desk, _ = following(**changes)
    (request,) = desk.requests()
    say(desk, A, request, SECOND)
    return desk


def results(desk: Desk) -> list[tuple[int, int, list[int], bool]]:
    return [
        (r.work.sequence, r.attempt, m.unpack_tokens(r.tokens).tolist(), r.last)
        for r in desk.sent(m.FinishedRollout, TRAINER)
    ]


def test_an_answer_begins_another_sequence_with_a_prompt_of_its_own() -> None:
    desk, _ = following()
    assert results(desk) == [(0, 0, FIRST, False)]
    (request,) = desk.requests(A)
    assert request.work == Work(seed=7, batch=0, prompt=0, sample=0, sequence=1)  # type: ignore[arg-type]
    assert request.prompt_tokens == m.pack_tokens(NEXT)
    assert (request.response_tokens, request.runs) == (b"", ())
    say(desk, A, request, SECOND)
    (question,) = desk.sent(m.Parked, TRAINER)
    assert (question.work, question.turn) == (request.work, 0)
    assert m.unpack_tokens(question.tokens).tolist() == SECOND
    reply(desk, (), over=True)
    assert results(desk) == [(1, 0, SECOND, True)]
    step = desk.manager.view.batches[0]
    assert step.finished and step.num_finished == 1
    desk.trainer(m.BatchTrained(batch=0, train_wait_seconds=0, train_seconds=1))
    (report,) = desk.sent(m.BatchReport)
    assert (report.tokens_delivered, report.tokens_lost) == (6, 0)


def test_the_prompt_of_a_later_sequence_is_prefilled_beside_its_group() -> None:
    """Members of a group share the first one only."""
    desk = Desk(settings(deterministic=False, manager__window_initial_seconds=1e-9, slot_tokens=64))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0, slot_tokens=64)
    desk.begin(0, prompts=1, group_size=2, turns=4)
    first, _ = desk.requests(A)
    say(desk, A, first, FIRST)
    reply(desk, (), over=True, prompt=m.pack_tokens(NEXT))
    assert len(desk.manager.view.instances[A].held) == 2
    prompt = len(first.prompt_tokens) // 4
    assert desk.manager.view.instances[A].activity.take_usage().prefilled == prompt + len(NEXT)


@pytest.mark.parametrize("same", [0, 2, 5])
def test_pages_of_a_sequence_spare_the_next_one_what_both_begin_with(same: int) -> None:
    desk = parked(4)
    sequence = [*m.unpack_tokens(only(desk).transcript.prompt).tolist(), *FIRST]
    prompt = [*sequence[:same], (sequence[same] + 1) % VOCAB, *NEXT][:5]
    desk.manager.view.instances[A].activity.take_usage()
    reply(desk, (), over=True, prompt=m.pack_tokens(prompt))
    assert only(desk).placement.spared == same
    assert desk.manager.view.instances[A].activity.take_usage().prefilled == len(prompt) - same


def test_a_response_that_begins_anew_has_no_more_in_pages_than_its_prompt() -> None:
    desk = parked(4)
    desk.manager.view.instances[A].activity.take_usage()
    reply(desk, (), restart=True)
    assert only(desk).placement.spared == only(desk).transcript.length == 3
    desk = second_parked()
    reply(desk, (), restart=True)
    rollout = only(desk)
    assert rollout.placement.spared == 0, "they are the second sequence's"
    assert rollout.transcript.length == 3


def test_what_is_said_to_a_sequence_that_is_over_is_its_last_token() -> None:
    desk = parked(3)
    reply(desk, (7,), over=True, prompt=m.pack_tokens(NEXT))
    (result,) = desk.sent(m.FinishedRollout)
    assert (result.runs, result.last) == ((3, 1), False)
    (request,) = desk.requests(A)
    assert (request.work.sequence, request.runs) == (1, ())


def test_turns_of_all_sequences_count() -> None:
    """Two: the second sequence has but one, and nobody is asked about it."""
    desk, _ = following(turns=2)
    (request,) = desk.requests()
    say(desk, A, request, SECOND)
    assert not desk.sent(m.Parked)
    assert results(desk) == [(1, 0, SECOND, True)]


def test_each_sequence_may_have_as_many_tokens_as_any() -> None:
    desk, _ = following()
    (request,) = desk.requests()
    say(desk, A, request, [1] * (MAX_TOKENS + 1))
    ((_, _, tokens, last),) = results(desk)
    assert len(tokens) == MAX_TOKENS and last


@pytest.mark.parametrize(("length", "goes_on"), [(3 + ROOM, True), (4 + ROOM, False)])
def test_one_whose_prompt_has_no_room_ends_its_response(length: int, goes_on: bool) -> None:
    """A slot has 3 + 12 + 6 tokens, and the sequence may have 12."""
    desk = parked(4)
    reply(desk, (), over=True, prompt=m.pack_tokens([1] * length))
    assert bool(desk.requests()) == goes_on
    assert results(desk) == [(0, 0, FIRST, not goes_on)]
    desk.crash(at=1.0)
    assert (only(desk).result is None) == goes_on


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"prompt": m.pack_tokens([VOCAB]), "over": True}, "token 64"),
        ({"prompt": b"12345", "over": True}, "5 bytes"),
        ({"prompt": m.pack_tokens([1]), "tokens": m.pack_tokens([2])}, "say that this one is over"),
        ({"restart": True, "tokens": m.pack_tokens([2])}, "begin anew, and go on"),
        ({"restart": True, "over": True}, "begin anew, and go on"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], why: str) -> None:
    desk = parked(4)
    answer = {"tokens": b"", "over": False, **fields}
    desk.trainer(m.Answer(work=only(desk).sequences.work, attempt=0, turn=0, **answer))
    (refused,) = desk.sent(m.RequestRefused)
    assert why in refused.reason
    assert only(desk).parked


def test_a_batch_of_endless_responses_is_refused() -> None:
    desk = parked()
    desk.begin(1, turns=MAX_TURNS + 1)
    assert "environment.max_turns" in desk.sent(m.RequestRefused)[0].reason


@pytest.mark.parametrize(
    "stale",
    [
        {"sequence": 0},
        {"sequence": 2},
        {"sequence": 1, "attempt": 1},
        {"sequence": 1, "turn": 1},
    ],
)
def test_an_answer_to_another_sequence_changes_nothing(stale: dict[str, int]) -> None:
    desk = second_parked()
    work = Work(seed=7, batch=0, prompt=0, sample=0, sequence=stale["sequence"])  # type: ignore[arg-type]
    fields = {"attempt": 0, "turn": 0, **stale}
    del fields["sequence"]
    desk.trainer(m.Answer(work=work, tokens=m.pack_tokens([1]), over=False, **fields))
    assert only(desk).parked and not desk.sent(m.Generate)


def test_a_manager_that_goes_on_knows_all_sequences() -> None:
    desk, _ = following()
    (request,) = desk.requests()
    say(desk, A, request, [8, 9])
    before = only(desk)
    desk.crash(at=1.0)
    after = only(desk)
    assert (after.sequences.work, after.results) == (before.sequences.work, before.results)
    assert bytes(after.transcript.tokens) == m.pack_tokens([8, 9])
    desk.trainer(m.TrainerHello(run_id="run", window=None))
    desk.trainer(desk.manager.view.batches[0].begin)
    assert results(desk) == [(0, 0, FIRST, False)]
    desk.publish(0)
    desk.join(A, 0, slot_tokens=64)
    (request,) = desk.requests(A)
    assert (request.work.sequence, request.response_tokens) == (1, m.pack_tokens([8, 9]))
    assert request.prompt_tokens == m.pack_tokens(NEXT)


def test_a_trainer_that_comes_back_hears_all_in_order() -> None:
    desk = second_parked()
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id="run", window=None), stream=5)
    desk.trainer(desk.manager.view.batches[0].begin, stream=5)
    said = [type(a.message) for a in desk.actions if getattr(a, "stream", None) == 5]
    assert said == [m.FinishedRollout, m.Parked]


def test_tokens_of_a_sequence_whose_beginning_was_lost_are_lost_with_it() -> None:
    """They are of no other."""
    desk, _ = following()
    (request,) = desk.requests()
    say(desk, A, request, [8, 9])
    desk.entries = [e for e in desk.entries if type(e).__name__ != "Answered"]
    desk.crash(at=1.0)
    assert only(desk).awaits(0, 0, 0)
    assert m.unpack_tokens(bytes(only(desk).transcript.tokens)).tolist() == FIRST


def finished(*, servers: int = 3) -> Desk:
    """The first sequence from A, the second from B; the response is over."""
    desk = parked(4, servers=2)
    desk(ServerGone(A, "killed"))
    reply(desk, (), over=True, prompt=m.pack_tokens(NEXT))
    (request,) = desk.requests(B)
    say(desk, B, request, SECOND)
    reply(desk, (), over=True)
    if servers > 2:
        desk.join(12, 0, slot_tokens=64, nonce="12")
    return desk


def doubt_in(sequence: int, position: int, attempt: int = 0) -> m.Doubt:
    return m.Doubt(
        batch=0,
        samples=m.pack_ids([0]),
        attempts=m.pack_ids([attempt]),
        positions=m.pack_ids([position]),
        gap=1.0,
        sequences=m.pack_ids([sequence]),
    )


def test_a_doubt_of_the_second_keeps_the_first_and_says_it_again() -> None:
    desk = finished()
    desk.trainer(doubt_in(1, 1))
    assert [r.instance for r in desk.records("quarantined")] == ["server-11"]
    assert results(desk) == [(0, 0, FIRST, False)]
    (request,) = desk.requests(12)
    assert (request.work.sequence, request.prompt_tokens) == (1, m.pack_tokens(NEXT))
    say(desk, 12, request, SECOND)
    (question,) = desk.sent(m.Parked)
    assert (question.work.sequence, question.attempt) == (1, 1)
    reply(desk, (), over=True, attempt=1)
    assert results(desk) == [(1, 1, SECOND, True)]


def test_a_doubt_of_the_first_drops_all_that_follow() -> None:
    desk = finished()
    begin = desk.manager.view.batches[0].begin
    desk.trainer(doubt_in(0, 0))
    assert only(desk).sequences.work.sequence == 0 and not results(desk)
    (request,) = desk.requests()
    assert (request.work.sequence, request.prompt_tokens) == (0, begin.prompts[0].tokens)
    books = desk.manager.view.batches[0].books
    assert (books.generated, books.lost) == (6, 6)
    desk.crash(at=1.0)
    whole = only(desk).sequences
    assert (whole.work.sequence, whole.attempt, whole.num_tokens) == (0, 1, 0)


def test_an_older_attempt_that_is_disputed_brings_all_again() -> None:
    desk = finished()
    desk.trainer(doubt_in(1, 1))
    (request,) = desk.requests(12)
    desk.trainer(doubt_in(1, 1))
    assert results(desk) == [(0, 0, FIRST, False)], "it may have been forgotten once more"
    say(desk, 12, request, SECOND)
    reply(desk, (), over=True, attempt=1)
    desk.trainer(doubt_in(1, 1))
    assert results(desk) == [(0, 0, FIRST, False), (1, 1, SECOND, True)]


@pytest.mark.parametrize(("sequence", "position"), [(0, 3), (1, 99)])
def test_a_doubt_beyond_a_sequence_is_refused(sequence: int, position: int) -> None:
    desk = finished()
    desk.trainer(doubt_in(sequence, position))
    assert f"in sequence {sequence}" in desk.sent(m.RequestRefused)[0].reason


def test_a_response_in_the_making_goes_back_to_before_an_untrusted_instance() -> None:
    """In whichever of its sequences that was. Later sequences that were delivered count no more."""
    desk = parked(4, servers=2)
    desk(ServerGone(B, "killed"))
    reply(desk, (), over=True, prompt=m.pack_tokens(NEXT))
    whole = only(desk).sequences
    desk.manager.components.placements.redo([], ["server-10"], desk.now)
    assert (whole.work.sequence, whole.attempt, whole.num_tokens) == (0, 1, 0)


def test_a_response_begins_anew_where_its_environment_has_to() -> None:
    desk = second_parked(servers=2)
    begin = desk.manager.view.batches[0].begin
    reply(desk, (), restart=True)
    (request,) = desk.requests()
    assert (request.work.sequence, request.prompt_tokens) == (0, begin.prompts[0].tokens)
    assert request.response_tokens == b""
    assert desk.manager.view.batches[0].books.lost == 6
    reply(desk, (), restart=True)
    assert not desk.requests(), "said twice"
    say(desk, A if desk.manager.view.instances[A].held else B, request, FIRST)
    (question,) = desk.sent(m.Parked)
    assert (question.attempt, question.work.sequence, question.turn) == (1, 0, 0)
    desk.crash(at=1.0)
    assert only(desk).awaits(0, 1, 0)


def test_what_is_not_finished_is_lost_with_all_its_sequences() -> None:
    desk, _ = following()
    desk.trainer(m.BatchTrained(batch=0, train_wait_seconds=0, train_seconds=1))
    (report,) = desk.sent(m.BatchReport)
    assert (report.tokens_delivered, report.tokens_lost) == (0, 3)


def test_what_measures_is_withdrawn_and_what_stays_of_it_is_said_again() -> None:
    desk = parked(4, servers=2)
    begin = desk.manager.view.batches[0].begin
    desk.trainer(
        m.ExtendBatch(
            batch=begin.batch,
            prompts=(m.PromptRequest(prompt=0, tokens=m.pack_tokens([1, 2]), purpose="evaluate"),),
        )
    )
    (request,) = desk.requests()
    there, other = (A, B) if desk.requests(A) else (B, A)
    name = f"server-{other}"
    say(desk, there, request, FIRST)
    (question,) = desk.sent(m.Parked)
    desk(ServerGone(there, "killed"))
    asked = {"work": question.work, "attempt": 0, "turn": 0, "tokens": b"", "over": True}
    desk.trainer(m.Answer(**asked, prompt=m.pack_tokens(NEXT)))
    (request,) = desk.requests(other)
    say(desk, other, request, SECOND)
    (question,) = desk.sent(m.Parked)
    desk.trainer(m.Answer(**{**asked, "work": question.work}))
    assert [(s, last) for s, _, _, last in results(desk)] == [(1, True)]
    desk.manager.components.placements.redo([], [name], desk.now)
    desk.actions = desk.manager.handle(ServerGone(other, "killed"), desk.now)
    said = [a.message for a in desk.actions if getattr(a, "stream", None) == TRAINER]
    kinds = [type(x) for x in said if isinstance(x, m.ResponsesWithdrawn | m.FinishedRollout)]
    assert kinds == [m.ResponsesWithdrawn, m.FinishedRollout]
    assert results(desk) == [(0, 0, FIRST, False)]


def test_routes_begin_with_each_prompt() -> None:
    quick = {"deterministic": False, "manager__window_initial_seconds": 1e-9, "routing": ROUTING}
    desk = Desk(settings(**quick, slot_tokens=3 + MAX_TOKENS + ROOM))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0, slot_tokens=64)
    desk.begin(0, prompts=1, group_size=1, turns=4)
    (request,) = desk.requests(A)
    desk.server(A, batch(0, 0, [(request.request_id, FIRST)], leads=[2]))
    reply(desk, (), over=True, prompt=m.pack_tokens(NEXT))
    (first,) = desk.sent(m.RoutedRollout)
    assert first.routes == routes(2, FIRST)
    (request,) = desk.requests(A)
    desk.server(A, batch(1, 0, [(request.request_id, [8])], leads=[3]))
    desk.crash(at=1.0)
    assert (only(desk).transcript.lead, only(desk).sequences.num_tokens) == (0, 4)
    assert only(desk).results == (first,)
    assert bytes(only(desk).transcript.routes) == routes(3, [8])


def test_a_turn_may_have_a_limit_of_its_own() -> None:
    quick = {"deterministic": False, "manager__window_initial_seconds": 1e-9}
    desk = Desk(settings(**quick, slot_tokens=3 + MAX_TOKENS + ROOM))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0, slot_tokens=64)
    desk.begin(0, prompts=1, group_size=1, turns=9, turn_tokens=5)
    (request,) = desk.requests(A)
    assert request.sampling.turn_tokens == 5
    say(desk, A, request, [1] * 7)
    (question,) = desk.sent(m.Parked)
    assert m.unpack_tokens(question.tokens).tolist() == [1] * 5
    assert desk.manager.view.batches[0].books.lost == 2
    reply(desk, (7,))
    (request,) = desk.requests(A)
    say(desk, A, request, [2, 2, STOP])
    desk.crash(at=1.0)
    assert only(desk).awaits(0, 0, 1)
    desk.trainer(m.TrainerHello(run_id="run", window=None))
    desk.trainer(desk.manager.view.batches[0].begin)
    desk.publish(0)
    desk.join(A, 0, slot_tokens=64)
    reply(desk, (7,), turn=1)
    (request,) = desk.requests(A)
    say(desk, A, request, [3] * 5)
    (result,) = desk.sent(m.FinishedRollout)
    assert result.runs == (5, 1, 3, 1, 4), "12 in all"
    assert result.logprobs == m.pack_logprobs([logprob(t) for t in [1] * 5 + [2, 2, 0] + [3] * 4])


def test_a_report_tells_of_turns_and_of_time_without_any_to_sample() -> None:
    """Parked from 1 s to 3 s of 4 s, and back at A; then with another sequence."""
    quick = {"deterministic": False, "manager__window_initial_seconds": 1e-9}
    quick["manager__lease_seconds"] = 60.0
    desk = Desk(settings(**quick, slot_tokens=3 + MAX_TOKENS + ROOM))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0, slot_tokens=64)
    desk.begin(0, prompts=1, group_size=1, turns=4)
    (request,) = desk.requests(A)
    desk.now = 1.0
    say(desk, A, request, FIRST)
    desk.now = 3.0
    reply(desk, (7,))
    (request,) = desk.requests(A)
    desk.now = 4.0
    say(desk, A, request, SECOND)
    reply(desk, (), turn=1, over=True, prompt=m.pack_tokens(NEXT))
    (request,) = desk.requests(A)
    say(desk, A, request, SECOND)
    reply(desk, (), over=True)
    desk.trainer(m.BatchTrained(batch=0, train_wait_seconds=0, train_seconds=1))
    (report,) = desk.sent(m.BatchReport)
    assert report.parked_share == pytest.approx(0.5)
    assert (report.turns_mean, report.sequences_mean, report.returned_share) == (3.0, 2.0, 1.0)


def test_one_without_turns_has_nothing_to_tell_of_them() -> None:
    desk = Desk(settings(deterministic=False))
    desk.open_run()
    desk.begin(0, prompts=1, group_size=1)
    desk.trainer(m.BatchTrained(batch=0, train_wait_seconds=0, train_seconds=1))
    (report,) = desk.sent(m.BatchReport)
    assert report.parked_share is report.turns_mean is report.returned_share is None
