"""Servers that the learner does not believe."""

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone
from rlboost_jax.manager.state.rollouts import Rollout
from tests.manager.desk import RESERVED, TRAINER, Desk, seeded
from tests.manager.fakes import hello, settings
from tests.manager.test_extending import GREEDY, extension

A, B = 10, 11


def doubt(
    *pairs: tuple[int, int], step: int = 0, attempt: int = 0, checksums: bytes = b""
) -> m.Doubt:
    return m.Doubt(
        batch=step,
        samples=m.pack_ids([sample for sample, _ in pairs]),
        attempts=m.pack_ids([attempt for _ in pairs]),
        positions=m.pack_ids([position for _, position in pairs]),
        gap=3.0,
        checksums=checksums,
    )


def two_servers() -> tuple[Desk, dict[int, list[m.GenerateRequest]]]:
    """Batch 0 at A and B; every rollout has two tokens, or is over before."""
    desk = Desk(settings(deterministic=False, manager__window_initial_seconds=1e-9))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0)
    desk.join(B, 0, nonce="2")
    desk.begin(0)
    held = {stream: desk.requests(stream) for stream in (A, B)}
    for stream, requests in held.items():
        desk.tokens(stream, requests, 2)
    return desk, held


def rollouts(desk: Desk) -> dict[int, Rollout]:
    step = desk.manager.view.batch
    assert step is not None
    return {rollout.sample: rollout for rollout in step.rollouts}


def finish(desk: Desk, stream: int, request: m.GenerateRequest) -> None:
    rollout = rollouts(desk)[request.work.sample]
    if rollout.result is None:
        desk.tokens(stream, [rollout.request()])
    assert rollout.result is not None


def test_a_liar_leaves_and_all_its_unproved_tokens_with_it() -> None:
    desk, held = two_servers()
    lie = held[A][0]
    finish(desk, A, lie)
    honest = {r.work.sample: rollouts(desk)[r.work.sample].transcript.num_tokens for r in held[B]}
    kept = desk.manager.view.books.generated - desk.manager.view.books.lost
    desk.trainer(doubt((lie.work.sample, 1)))
    assert "nats" in desk.closed()[A]
    assert [leave.reason[:11] for leave in desk.sent(m.Leave, A)] == ["quarantined"]
    (record,) = desk.records("quarantined")
    assert record.instance == "server-10" and desk.manager.view.status(0.0).quarantined == 1
    after = rollouts(desk)
    blamed = [after[r.work.sample] for r in held[A]]
    assert all(r.finished or not r.transcript.num_tokens for r in blamed)
    assert {sample: after[sample].transcript.num_tokens for sample in honest} == honest
    books = desk.manager.view.books
    gone = kept - (books.generated - books.lost)
    assert gone > 0
    assert books.generated - books.lost == sum(r.transcript.num_tokens for r in after.values())
    assert lie.work.sample in {r.work.sample for r in desk.requests(B)} | {
        r.work.sample for r in after.values() if r.waiting
    }


def test_a_name_in_the_journal_is_that_of_the_server_it_had_then() -> None:
    """After a restart another one asks for it first: it is not the one that lied (found by a random
    schedule, where a power cut had taken from the journal who had had the name before)."""
    desk, held = two_servers()
    lie = held[A][0]
    finish(desk, A, lie)
    (attempt,) = {rollouts(desk)[lie.work.sample].sequences.attempt}
    desk.crash(at=1.0)
    honest, liar = 12, 13
    desk.join(honest, 0, instance="server-10", nonce="another")
    desk.join(liar, 0, instance="server-10", nonce="1")
    desk.trainer(m.TrainerHello(run_id="run", window=None))
    desk.begin(0)
    desk.trainer(doubt((lie.work.sample, 1), attempt=attempt))
    assert liar in desk.closed() and honest not in desk.closed()
    assert {i.stream for i in desk.manager.view.roster} == {honest}


def test_a_liars_finished_answers_that_measure_the_policy_are_withdrawn() -> None:
    """Nobody else checks them. The trainer hears of it before it can think that it has all."""
    desk, held = two_servers()
    for stream in (A, B):
        for request in held[stream]:
            finish(desk, stream, request)
    desk.trainer(extension(5, 6, purpose="evaluate", samples=1, sampling=GREEDY))
    measured = {stream: desk.requests(stream) for stream in (A, B)}
    assert [len(requests) for requests in measured.values()] == [1, 1]
    for stream, requests in measured.items():
        desk.tokens(stream, requests)
    ((of_liar,), (of_other,)) = measured.values()
    desk.sent(m.FinishedRollout)
    desk.trainer(doubt((held[A][0].work.sample, 0)))
    (withdrawn,) = desk.sent(m.ResponsesWithdrawn)
    assert m.unpack_ids(withdrawn.samples).tolist() == [of_liar.work.sample]
    assert rollouts(desk)[of_other.work.sample].result is not None
    again = next(r for r in desk.requests(B) if r.work.sample == of_liar.work.sample)
    assert not again.response_tokens
    desk.tokens(B, [again])
    (answer,) = [r for r in desk.sent(m.FinishedRollout) if r.work.sample == of_liar.work.sample]
    assert (answer.attempt, answer.instances) == (1, ("server-11",))


def test_what_others_go_on_with_from_a_lie_is_stopped() -> None:
    """A sampled the first two tokens, B goes on; the doubt is about another response of A's."""
    desk, held = two_servers()
    moved = next(r for r in held[A] if rollouts(desk)[r.work.sample].result is None)
    lie = next(r for r in held[A] if r is not moved)
    finish(desk, A, lie)
    for request in held[B]:
        finish(desk, B, request)
    desk.server(A, m.Released(request_ids=m.pack_ids([moved.request_id])))
    (taken,) = [
        r for stream in (A, B) for r in desk.requests(stream) if r.work.sample == moved.work.sample
    ]
    assert taken in desk.requests(B), "where it has room"
    desk.trainer(doubt((lie.work.sample, 0)))
    assert taken.request_id in m.unpack_ids(desk.sent(m.Release, B)[0].request_ids)
    assert rollouts(desk)[moved.work.sample].transcript.num_tokens == 0
    books = desk.manager.view.books
    lost = books.lost
    desk.tokens(B, [taken], 2)
    too_late = rollouts(desk)[moved.work.sample].transcript
    assert books.lost > lost and too_late.num_tokens == 0


def test_a_response_is_redone_from_before_the_liars_first_token() -> None:
    desk, held = two_servers()
    request = next(r for r in held[A] if rollouts(desk)[r.work.sample].result is None)
    desk.server(A, m.Goodbye(reason="SIGTERM"))
    rollout = rollouts(desk)[request.work.sample]
    for other in held[B]:  # until there is room at B
        if rollout.placement.holder:
            break
        finish(desk, B, other)
    finish(desk, B, rollout.request())
    assert rollout.result is not None and [name for name, _ in rollout.transcript.parts] == [
        "server-10",
        "server-11",
    ]
    honest = rollout.result.tokens[: 4 * 2]
    desk.trainer(doubt((request.work.sample, 2)))
    assert B in desk.closed()
    assert rollout.result is None and bytes(rollout.transcript.tokens) == honest


def test_a_liar_does_not_come_back_with_the_same_name_and_nonce() -> None:
    desk, held = two_servers()
    finish(desk, A, held[A][0])
    desk.trainer(doubt((held[A][0].work.sample, 0)))
    desk.server(12, hello(instance="server-10"))
    assert "sent away" in desk.closed()[12]
    desk.server(13, hello(instance="server-10", nonce="77"))
    assert 13 not in desk.closed(), "started anew"
    desk.crash(at=1.0)
    desk.server(14, hello(instance="server-10"))
    assert "sent away" in desk.closed()[14]


def test_a_second_doubt_about_the_same_response_changes_nothing() -> None:
    desk, held = two_servers()
    finish(desk, A, held[A][0])
    desk.trainer(doubt((held[A][0].work.sample, 0)))
    before = {sample: r.transcript.num_tokens for sample, r in rollouts(desk).items()}
    desk.trainer(doubt((held[A][0].work.sample, 0)))
    assert {sample: r.transcript.num_tokens for sample, r in rollouts(desk).items()} == before
    assert not desk.records("quarantined")


def test_the_trainers_own_engine_cannot_be_quarantined() -> None:
    desk = seeded()
    request = desk.requests(RESERVED)[0]
    desk.tokens(RESERVED, [request])
    desk.trainer(doubt((request.work.sample, 0)))
    (refused,) = desk.sent(m.RequestRefused)
    assert "learner.tolerated_gap" in refused.reason and TRAINER in desk.closed()


@pytest.mark.parametrize(
    "message",
    [
        doubt((0, 999)),
        m.Doubt(batch=0, samples=b"\0\0\0\0", attempts=b"", positions=b"", gap=1.0),
        m.Doubt(batch=0, samples=b"\0", attempts=b"\0", positions=b"\0", gap=1.0),
    ],
)
def test_a_doubt_that_fits_no_response_is_refused(message: m.Doubt) -> None:
    desk = seeded()
    requests = desk.requests(RESERVED)
    desk.tokens(RESERVED, requests)
    assert rollouts(desk)[0].result is not None
    desk.trainer(message)
    assert desk.sent(m.RequestRefused)


def test_a_doubt_about_another_step_is_late() -> None:
    desk, held = two_servers()
    finish(desk, A, held[A][0])
    desk.trainer(doubt((held[A][0].work.sample, 0), step=7))
    assert desk.closed() == {} and rollouts(desk)[held[A][0].work.sample].result is not None


def test_a_doubt_about_an_earlier_attempt_blames_nobody_and_brings_the_present_one() -> None:
    desk, held = two_servers()
    lie = held[A][0].work.sample
    finish(desk, A, held[A][0])
    desk.trainer(doubt((lie, 0)))
    rollout = rollouts(desk)[lie]
    for request in held[B]:  # until there is room at B
        if rollout.placement.holder:
            break
        finish(desk, B, request)
    finish(desk, B, rollout.request())
    assert rollout.result is not None and rollout.result.attempt == 1
    desk.trainer(doubt((lie, 0)))
    assert desk.closed() == {} and rollout.result is not None
    assert desk.sent(m.FinishedRollout) == [rollout.result]


@pytest.mark.parametrize("position", [0, 999])
def test_a_doubt_about_what_an_earlier_manager_has_delivered_blames_nobody(position: int) -> None:
    """It made other tokens, which a full disk kept out of the journal, of the same attempt."""
    desk, held = two_servers()
    sample = held[A][0].work.sample
    finish(desk, A, held[A][0])
    result = rollouts(desk)[sample].result
    assert result is not None
    meant = m.checksum(result.tokens, result.logprobs)
    desk.trainer(doubt((sample, position), checksums=m.pack_ids([meant ^ 1])))
    assert desk.closed() == {} and desk.sent(m.FinishedRollout) == [result]
    desk.trainer(doubt((sample, 0), checksums=m.pack_ids([meant])))
    assert list(desk.closed()) == [A]


def test_a_liar_that_has_dialled_again_is_known_by_its_process() -> None:
    desk, held = two_servers()
    finish(desk, A, held[A][0])
    desk(ServerGone(A, "cut"))
    desk.join(12, 0, instance="server-10")
    assert 12 not in desk.closed()
    desk.trainer(doubt((held[A][0].work.sample, 0)))
    assert 12 in desk.closed()


def test_nobody_takes_the_name_of_the_trainers_own_engine() -> None:
    desk = seeded()
    desk(ServerGone(RESERVED, "the trainer is away"))
    own = next(iter(desk.manager.view.roster.own))
    desk.server(12, hello(instance=own))
    assert "own engine" in desk.closed()[12]


def test_a_name_is_one_servers_only() -> None:
    desk, _ = two_servers()
    desk(ServerGone(A, "killed"))
    desk.server(12, hello(instance="server-10", nonce="9"))
    (welcome,) = desk.sent(m.Welcome, 12)
    assert welcome.instance != "server-10"
