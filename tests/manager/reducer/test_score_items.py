"""Sequences that servers score for teachers: who is asked, and what is believed."""

from typing import Any

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone
from tests.manager.desk import RESERVED, TRAINER, Desk, trained
from tests.manager.fakes import RUN, TEACHER, hello, settings, teacher_scores

A, B, C = 10, 11, 12
TEACH = m.Teach(manifests=(TEACHER,))
TOKENS = [3, 0, 1, 7, 9]
TRUE, FALSE = teacher_scores([7, 9]), teacher_scores([8, 9])


def item(number: int = 0, **changes: Any) -> m.ScoreTokens:
    values: dict[str, Any] = {
        "number": number,
        "batch": 0,
        "teacher": TEACHER.params_digest,
        "temperature": 1.0,
        "first": 3,
        "tokens": m.pack_tokens(TOKENS),
    }
    return m.ScoreTokens(**values | changes)


def taught(*streams: int, **changes: Any) -> Desk:
    """Batch 0 is open; these servers hold the teacher, and no version of the policy."""
    desk = Desk(settings(manager__seeding=False, **changes))
    desk.open_run()
    desk.begin(0)
    desk.trainer(TEACH)
    for stream in streams:
        desk.join(stream, nonce=str(stream))
        assert desk.sent(m.Teach, stream) == [TEACH]
        teaches(desk, stream)
    return desk


def teaches(desk: Desk, stream: int) -> None:
    desk.server(stream, m.Teaches(digests=(TEACHER.params_digest, "of another run")))


def asked(desk: Desk, *streams: int) -> dict[int, list[m.ScoreTokens]]:
    return {stream: desk.sent(m.ScoreTokens, stream) for stream in streams}


def say(desk: Desk, stream: int, given: m.ScoreTokens, logprobs: bytes) -> list[m.TokenScores]:
    desk.server(stream, m.TokenScores(number=given.number, logprobs=logprobs))
    return desk.sent(m.TokenScores, TRAINER)


def test_two_servers_agree() -> None:
    desk = taught(A, B, C)
    desk.trainer(item(5))
    given = asked(desk, A, B, C)
    assert [len(each) for each in given.values()] == [1, 1, 0], "no more than are needed"
    (of_a,), (of_b,), _ = given.values()
    assert of_a.number != of_b.number and of_a.tokens == of_b.tokens == m.pack_tokens(TOKENS)
    assert say(desk, A, of_a, TRUE) == []
    assert say(desk, B, of_b, TRUE) == [m.TokenScores(number=5, logprobs=TRUE)]
    assert not list(desk.manager.components.servers.scores.items)


@pytest.mark.parametrize("liar", [A, B])
def test_a_third_decides_and_the_odd_one_is_quarantined(liar: int) -> None:
    desk = taught(A, B, C)
    desk.trainer(item())
    (of_a,), (of_b,) = asked(desk, A, B).values()
    say(desk, A, of_a, FALSE if liar == A else TRUE)
    assert say(desk, B, of_b, FALSE if liar == B else TRUE) == []
    (of_c,) = desk.sent(m.ScoreTokens, C)
    assert say(desk, C, of_c, TRUE) == [m.TokenScores(number=0, logprobs=TRUE)]
    (record,) = desk.records("quarantined")
    assert record.instance == f"server-{liar}" and liar in desk.closed()
    desk.server(20, hello(instance=f"server-{liar}", nonce=str(liar)))
    assert "sent away before" in desk.closed()[20]


def test_pulls_of_teachers_are_paid_for() -> None:
    """30 GB at two dollars per GB, or what of it came; on one stream no more than all of it."""
    desk = taught(manager__lease_seconds=1e6, fleet__egress_dollars_per_gb=2.0)
    size = 30 * 10**9
    desk.trainer(m.Teach(manifests=(msgspec.structs.replace(TEACHER, piece_bytes=size),)))
    for stream, fetched, dollars in ((A, size, 60.0), (A, size, 60.0), (B, 10**9, 62.0)):
        if stream not in desk.manager.view.roster.streams:
            desk.join(stream, nonce=str(stream))
        desk.server(stream, m.Teaches(digests=(TEACHER.params_digest,), fetched_bytes=fetched))
        assert desk.manager.status(desk.now).cost_dollars == pytest.approx(dollars)


def test_one_server_alone_is_not_enough() -> None:
    """It is not asked twice, on another stream of its own either. The next server is."""
    desk = taught(A)
    desk.trainer(item())
    (given,) = desk.sent(m.ScoreTokens, A)
    assert say(desk, A, given, TRUE) == []
    desk(ServerGone(A, "cut"))
    desk.join(20, instance=f"server-{A}", nonce=str(A))
    teaches(desk, 20)
    assert not desk.sent(m.ScoreTokens)
    desk.join(B, nonce=str(B))
    teaches(desk, B)
    (given,) = desk.sent(m.ScoreTokens, B)
    assert len(say(desk, B, given, TRUE)) == 1


def test_the_items_of_a_lost_server_go_to_others() -> None:
    desk = taught(A, B)
    desk.trainer(item(0))
    desk.trainer(item(1))
    desk.join(C, nonce="3")
    teaches(desk, C)
    assert not desk.sent(m.ScoreTokens), "two have been asked about each"
    desk(ServerGone(A, "killed"))
    again = desk.sent(m.ScoreTokens, C)
    assert [each.tokens for each in again] == [m.pack_tokens(TOKENS)] * 2


def test_what_a_quarantined_server_has_said_counts_no_more() -> None:
    desk = taught(A, B, C)
    for number in (0, 1):
        desk.trainer(item(number))
    held = {i.stream: list(i.activity.scores.held.values()) for i in desk.manager.view.roster}
    assert [len(held[stream]) for stream in (A, B, C)] == [2, 1, 1], "two askers of each of two"
    first = {s: [g for g in held[s]] for s in (A, B, C)}
    say(desk, A, first[A][0], FALSE)
    desk.manager.components.servers.quarantine(f"server-{A}", "a lie", desk.now)
    scores = desk.manager.components.servers.scores
    assert all(f"{A}/server-{A}" not in each.said for each in scores.items)


@pytest.mark.parametrize(
    ("logprobs", "problem"),
    [
        (TRUE[:4], "4 bytes of scores where 8 were due"),
        (m.pack_logprobs([0.1, -1.0]), "no log-probability"),
        (m.pack_logprobs([float("nan"), -1.0]), "no log-probability"),
        (m.pack_logprobs([float("-inf"), -1.0]), "no log-probability"),
    ],
)
def test_what_is_no_score_ends_the_stream(logprobs: bytes, problem: str) -> None:
    desk = taught(A, B, C)
    desk.trainer(item())
    say(desk, A, desk.sent(m.ScoreTokens, A)[0], logprobs)
    assert desk.closed()[A].startswith("malformed") and problem in desk.closed()[A]
    assert desk.sent(m.ScoreTokens, C), "another is asked"


def test_servers_answer_in_order() -> None:
    """Else one could hold an item back for ever and seem to get on with others."""
    desk = taught(A, B)
    desk.trainer(item(0))
    (first,) = desk.sent(m.ScoreTokens, A)
    desk.trainer(item(1))
    (second,) = desk.sent(m.ScoreTokens, A)
    assert first.number != second.number
    say(desk, A, second, TRUE)
    assert "not the one that is due" in desk.closed()[A]
    say(desk, RESERVED, second, TRUE)
    assert "not the one that is due" in desk.closed()[RESERVED]


def test_a_server_that_scores_nothing_is_stuck() -> None:
    desk = taught(A, B, manager__lease_seconds=1e6)
    desk.trainer(item())
    desk.tick(29.0)
    assert not desk.closed()
    desk.tick(31.0)
    assert "no progress with scores for 30 s" in desk.closed()[A]


def test_a_trainer_that_is_back_asks_anew() -> None:
    """Under a number that means something else now. The server still answers the old question."""
    desk = taught(A, B)
    desk.trainer(item(0))
    (old_a,), (old_b,) = asked(desk, A, B).values()
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=2 * TRAINER + 100)
    stream = desk.manager.owners.outbox.trainer
    assert stream is not None
    desk.trainer(TEACH, stream)
    assert not desk.sent(m.Teach), "they hold it"
    desk.trainer(m.BeginBatch(**begin_fields(desk)), stream)
    desk.trainer(item(0, tokens=m.pack_tokens([3, 0, 1, 8, 9])), stream)
    for old in ((A, old_a), (B, old_b)):
        desk.server(old[0], m.TokenScores(number=old[1].number, logprobs=TRUE))
        assert not desk.sent(m.TokenScores)
    for each in list(desk.manager.view.roster):
        for given in list(each.activity.scores.held.values()):
            desk.server(each.stream, m.TokenScores(number=given.number, logprobs=FALSE))
    assert desk.sent(m.TokenScores, stream) == [m.TokenScores(number=0, logprobs=FALSE)]


def begin_fields(desk: Desk) -> dict[str, Any]:
    begin = desk.manager.view.batches[0].begin
    return {name: getattr(begin, name) for name in begin.__struct_fields__}


def test_items_end_with_their_batch() -> None:
    desk = taught(A)
    desk.trainer(item(0))
    desk.trainer(trained(0))
    assert not list(desk.manager.components.servers.scores.items)
    desk.trainer(item(1))
    assert not desk.sent(m.ScoreTokens) and not desk.closed(), "it comes too late"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"teacher": "unknown"}, "no teacher 'unknown'"),
        ({"first": 0}, "0 tokens are given"),
        ({"first": 5}, "5 tokens are given"),
        ({"tokens": b"123"}, "3 bytes"),
        ({"tokens": m.pack_tokens([1] * 40)}, "40 tokens where a slot has 16"),
        ({"tokens": m.pack_tokens([1, 2, 3, 64])}, "not in 0..63"),
    ],
)
def test_impossible_items_are_refused(changes: dict[str, Any], problem: str) -> None:
    desk = taught(A)
    desk.trainer(item(**changes))
    (refused,) = desk.sent(m.RequestRefused)
    assert problem in refused.reason
