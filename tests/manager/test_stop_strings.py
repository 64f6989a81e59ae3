"""Stop strings as the manager sees them: in tokens, whoever sampled them and whatever was lost."""

import random

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.data.stop_strings import StopStrings
from rlboost_jax.manager.events import ServerGone
from tests.manager.desk import TRAINER, Desk
from tests.manager.fakes import MAX_TOKENS, STOP, batch, begin_batch, settings

A, B = 10, 11
PIECES = (b"", *(bytes([65 + token]) for token in range(1, 26)), b"AA", b"XY", b"YZ")
STOPS = StopStrings(("XYZ", "BCBD"), PIECES).table
X, Y, Z, XY, YZ = (PIECES.index(piece) for piece in (b"X", b"Y", b"Z", b"XY", b"YZ"))
B_, C, D = (PIECES.index(piece) for piece in (b"B", b"C", b"D"))


def begun(turns: int = 1) -> Desk:
    """Batch 0: one response, at A; B is there too."""
    quick = {"deterministic": False, "manager__window_initial_seconds": 1e-9}
    desk = Desk(settings(**quick, slot_tokens=3 + MAX_TOKENS + 6))
    desk.open_run(reserved=False)
    desk.publish(0)
    for stream in (A, B):
        desk.join(stream, 0, slot_tokens=64, nonce=str(stream))
    begin = begin_batch(0, 0, "d", prompts=1, group_size=1, turns=turns)
    sampling = msgspec.structs.replace(begin.sampling, stops=STOPS)
    desk.trainer(msgspec.structs.replace(begin, sampling=sampling))
    return desk


def say(desk: Desk, stream: int, request_id: int, row: list[int]) -> None:
    sequence = desk._sequence.get(stream, 0)
    desk._sequence[stream] = sequence + 1
    desk.server(stream, batch(sequence, 0, [(request_id, row)]))


def finished(desk: Desk) -> list[int] | None:
    found = desk.sent(m.FinishedRollout, TRAINER)
    return m.unpack_tokens(found[0].tokens).tolist() if found else None


def test_work_says_the_strings_once() -> None:
    (work,) = begun().sent(m.Generate, A)
    assert work.stops == STOPS and {r.sampling.stops for r in work.requests} == {b""}
    assert {r.sampling.stops for r in work.whole} == {STOPS}
    again = m.decode_to_server(m.encode(work))
    assert isinstance(again, m.Generate) and again.whole == work.whole
    plain = [msgspec.structs.replace(r, request_id=n) for n, r in enumerate(work.requests)]
    assert m.saying_once("d", plain).whole == tuple(plain)
    mixed = [*work.whole, *plain]
    assert m.saying_once("d", mixed) == m.Generate(params_digest="d", requests=tuple(mixed))


@pytest.mark.parametrize(
    ("rows", "own"),
    [
        ([[3, X, Y, Z]], 4),
        ([[3, X], [Y], [Z]], 4),
        ([[3, XY], [Z, 5, 6]], 3),
        ([[X], [YZ, YZ]], 2),
        ([[X, XY], [X, Y, X, YZ, 9]], 6),
        ([[B_, C], [B_, C, B_, D, 5]], 6),
        ([[XY, STOP]], 2),
        ([[X, Y, 4, Z, STOP, Z]], 5),
        ([[X, Y] * 4, [X, X, X, X, YZ]], MAX_TOKENS),
    ],
)
def test_the_token_that_completes_one_is_the_last(rows: list[list[int]], own: int) -> None:
    """What comes behind it is lost, and counted so."""
    desk = begun()
    (request,) = desk.requests(A)
    given = [token for row in rows for token in row]
    for row in rows:
        assert finished(desk) is None
        say(desk, A, request.request_id, row)
    assert finished(desk) == given[:own]
    books = desk.manager.view.batches[0].books
    assert (books.generated, books.lost) == (len(given), len(given) - own)


def test_a_string_is_completed_on_another_server() -> None:
    desk = begun()
    (request,) = desk.requests(A)
    say(desk, A, request.request_id, [4, B_, C])
    desk(ServerGone(A, "killed"))
    (moved,) = desk.requests(B)
    assert m.unpack_tokens(moved.response_tokens).tolist() == [4, B_, C]
    say(desk, B, moved.request_id, [B_, D, 7])
    assert finished(desk) == [4, B_, C, B_, D]


@pytest.mark.parametrize("seed", range(20))
def test_a_manager_that_is_killed_finds_the_same_end(seed: int) -> None:
    """At random places, with random tokens; against a search in the text."""
    draw = random.Random(seed)
    row = draw.choices([X, Y, Z, XY, YZ, B_, C, D, 5], k=MAX_TOKENS)
    texts = [b"".join(PIECES[t] for t in row[:n]) for n in range(MAX_TOKENS + 1)]
    ends = (n for n, text in enumerate(texts) if b"XYZ" in text or b"BCBD" in text)
    end = next(ends, MAX_TOKENS)
    cut = draw.randrange(end)
    desk = begun()
    (request,) = desk.requests(A)
    say(desk, A, request.request_id, row[:cut])
    assert finished(desk) is None
    desk.crash(1.0)
    desk.open_run(reserved=False)
    desk.publish(0)
    begin = begin_batch(0, 0, "d", prompts=1, group_size=1)
    sampling = msgspec.structs.replace(begin.sampling, stops=STOPS)
    desk.trainer(msgspec.structs.replace(begin, sampling=sampling))
    desk.join(A, 0, slot_tokens=64, nonce="10")
    (again,) = desk.requests(A)
    assert m.unpack_tokens(again.response_tokens).tolist() == row[:cut]
    say(desk, A, again.request_id, row[cut:])
    assert finished(desk) == row[:end]


def test_a_turn_ends_with_one_and_the_next_begins_without_it() -> None:
    """What was given is no part of a string, and neither is the turn before it."""
    desk = begun(turns=2)
    (request,) = desk.requests(A)
    say(desk, A, request.request_id, [3, X, YZ, 8])
    (question,) = desk.sent(m.Parked, TRAINER)
    assert m.unpack_tokens(question.tokens).tolist() == [3, X, YZ]
    rollout = desk.manager.view.batches[0].rollouts[0]
    answer = m.Answer(
        work=rollout.sequences.work, attempt=0, turn=0, tokens=m.pack_tokens([X, Y]), over=False
    )
    desk.trainer(answer)
    (request,) = desk.requests()
    say(desk, A, request.request_id, [Z, 5])
    assert finished(desk) is None
    say(desk, A, request.request_id, [XY, Z, 5])
    assert finished(desk) == [3, X, YZ, X, Y, Z, 5, XY, Z]


def test_what_a_server_discards_is_sampled_and_lost() -> None:
    desk = begun()
    books = desk.manager.view.batches[0].books
    desk.server(A, m.Renew(discarded=7))
    assert (books.generated, books.lost) == (7, 7)
