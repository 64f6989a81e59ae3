"""Joining, leases, rejections, late and broken frames, one event at a time."""

import math

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone, Stalled
from rlboost_jax.manager.state.ended_streams import REMEMBERED_STREAMS
from tests.manager.desk import RESERVED, Desk, at_work
from tests.manager.fakes import batch, hello, settings

A, B, C = 10, 11, 12


def ready_pair() -> tuple[Desk, list[m.GenerateRequest]]:
    return at_work(A, manager__balance=False)


def test_a_lease_ends_exactly_at_its_bound() -> None:
    desk, _ = ready_pair()
    desk.now = 1.0
    desk.server(A, m.Renew())
    desk.now = 1.5
    desk.server(RESERVED, m.Renew())
    desk.tick(math.nextafter(3.0, 0.0))
    assert not desk.closed()
    desk.tick(3.0)
    assert desk.closed() == {A: "silent for 2 s"}


def test_a_renewal_at_the_bound_is_in_time() -> None:
    desk, _ = ready_pair()
    desk.now = 2.0
    desk.server(A, m.Renew())
    assert A not in desk.closed()
    assert RESERVED in desk.closed()


def test_a_program_compiled_amid_work_is_an_event() -> None:
    desk, _ = ready_pair()
    for count, recorded in ((0, []), (1, [{"programs": 1}]), (1, []), (3, [{"programs": 3}])):
        desk.server(A, m.Renew(programs_compiled=count))
        assert [record.detail for record in desk.records("compiled")] == recorded


def test_the_deadline_is_that_of_the_first_lease() -> None:
    desk = Desk()
    desk.join(A)
    assert desk.manager.next_deadline() == 2.0
    desk.now = 1.5
    desk.server(A, m.Renew())
    desk.tick(2.0)
    assert desk.manager.next_deadline() == 3.5


def test_silence_while_the_manager_itself_was_stopped_does_not_count() -> None:
    desk, _ = ready_pair()
    desk(Stalled(5.0), at=5.0)
    assert not desk.closed()
    desk.tick(7.0)
    assert set(desk.closed()) == {A, RESERVED}


def test_what_a_lost_server_held_goes_on_elsewhere_with_its_tokens() -> None:
    desk, requests = ready_pair()
    first = requests[0]
    desk.tokens(A, [first], 0, in_flight=8, running=2)
    desk.tokens(A, requests, 1, in_flight=6, running=2)
    desk(ServerGone(A, "killed"))
    moved = {r.work.sample: r for r in desk.requests(RESERVED)}
    assert moved and all(len(r.response_tokens) in (0, 4) for r in moved.values())
    assert {r.request_id for r in moved.values()}.isdisjoint(r.request_id for r in requests)
    (lost,) = desk.records("lost")
    assert lost.detail["tokens_lost"] == 6
    books = desk.manager.view.books
    assert books.generated == 4 + 6 and books.lost == 6
    assert desk.manager.view.roster.lost == 1


def test_a_goodbye_loses_nothing() -> None:
    desk, requests = ready_pair()
    desk.tokens(A, requests, 1, in_flight=6, running=2)
    desk.server(A, m.Goodbye(reason="SIGTERM"))
    assert desk.records("drained") and desk.manager.view.books.lost == 0


def test_a_batch_that_comes_twice_counts_once() -> None:
    desk, requests = ready_pair()
    rows = [(requests[0].request_id, [5])]
    for _ in range(2):
        desk.server(A, batch(0, 0, rows))
    books = desk.manager.view.books
    assert (books.generated, books.lost) == (2, 1)
    assert not desk.closed()


def test_a_gap_in_the_batches_ends_the_stream() -> None:
    desk, requests = ready_pair()
    desk.server(A, batch(1, 0, [(requests[0].request_id, [5])]))
    assert desk.closed() == {A: "malformed: token batch 1 where 0 was due"}
    assert desk.requests(RESERVED)


def test_late_tokens_of_a_lost_server_change_nothing() -> None:
    desk, requests = ready_pair()
    desk.tokens(A, requests, 0, in_flight=8, running=2)
    desk(ServerGone(A, "frozen"))
    before = [r.transcript.num_tokens for r in desk.manager.view.batches[0].rollouts]
    books = desk.manager.view.books
    for number, (count, total) in enumerate([(6, 8), (5, 11), (1, 12)], 1):
        desk.server(A, batch(number, 0, [(requests[0].request_id, [5] * count)]))
        assert books.generated == books.lost == total  # what was charged is not counted again
    assert before == [r.transcript.num_tokens for r in desk.manager.view.batches[0].rollouts]


def test_foreign_tokens_are_lost_and_harm_nobody() -> None:
    desk, requests = ready_pair()
    desk.server(A, batch(0, 0, [(777, [5, 6])]))
    desk.server(A, batch(1, 9, [(requests[0].request_id, [5])]))  # of another version
    books = desk.manager.view.books
    assert (books.generated, books.lost) == (3, 3) and not desk.closed()


def test_tokens_past_the_end_are_lost() -> None:
    desk, requests = ready_pair()
    desk.server(A, batch(0, 0, [(requests[0].request_id, [5, 0, 6, 7])]))
    (result,) = desk.sent(m.FinishedRollout)
    assert m.unpack_tokens(result.tokens).tolist() == [5, 0]
    assert desk.manager.view.books.lost == 2


def test_a_response_ends_at_its_limit() -> None:
    desk, requests = ready_pair()
    desk.server(A, batch(0, 0, [(requests[0].request_id, [5] * 14)]))
    (result,) = desk.sent(m.FinishedRollout)
    assert len(result.tokens) == 4 * 12
    assert desk.manager.view.books.lost == 2


BREAKS = {
    "tokens of half a size": {"tokens": b"\0\0\0"},
    "fewer tokens than counted": {"tokens": m.pack_tokens([1]), "logprobs": m.pack_logprobs([-1])},
    "more rows than counts": {"counts": m.pack_counts([2, 0])},
    "a token outside the vocabulary": {"tokens": m.pack_tokens([1, 64])},
    "a negative token": {"tokens": m.pack_tokens([1, -1])},
    "a probability above one": {"logprobs": m.pack_logprobs([-1, 0.5])},
    "no number": {"logprobs": m.pack_logprobs([-1, math.nan])},
    "infinitely unlikely": {"logprobs": m.pack_logprobs([-1, -math.inf])},
    "a negative announcement": {"in_flight": -1},
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_batch_that_contradicts_itself_ends_its_stream_only(name: str) -> None:
    desk, requests = ready_pair()
    good = batch(0, 0, [(requests[0].request_id, [1, 2])])
    desk.server(A, msgspec.structs.replace(good, **BREAKS[name]))
    assert list(desk.closed()) == [A]
    assert desk.closed()[A].startswith("malformed: ")
    assert all(r.transcript.num_tokens == 0 for r in desk.manager.view.batches[0].rollouts)


def test_frames_out_of_turn() -> None:
    desk = Desk()
    desk.server(A, m.Renew())
    assert desk.closed() == {A: "malformed: Renew before Hello"}
    desk.join(B)
    desk.server(B, hello())
    assert desk.closed() == {B: "malformed: a second Hello"}
    desk.join(C)
    desk.server(C, m.Released(request_ids=b"\0"))
    assert desk.closed()[C].startswith("malformed")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": 0}, "slots = 0"),
        ({"slots": 65}, "1..64"),
        ({"slot_tokens": 15}, "less than the 16"),
        ({"price_per_hour": math.nan}, "price"),
        ({"price_per_hour": -1.0}, "price"),
        ({"price_per_hour": 1e6}, "price"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, object], words: str) -> None:
    desk = Desk()
    desk.server(A, hello(**changes))
    (leave,) = desk.sent(m.Leave, A)
    assert words in leave.reason and A in desk.closed()
    assert desk.records("rejected") and not list(desk.manager.view.roster)
    assert not desk.server(A, m.Renew()), "what a refused server still says is not heard"


def test_a_server_of_a_release_before_is_sent_away_in_one_line() -> None:
    """It could not read an announcement, and would dial for ever."""
    desk = Desk()
    known = 1 + m.Hello.__struct_fields__.index("fetches_lists")  # the first is its name
    said = msgspec.msgpack.decode(m.encode(hello()))[:known]
    old = m.decode_server(msgspec.msgpack.encode(said))
    assert isinstance(old, m.Hello) and hello().fetches_lists
    desk.server(A, old)
    (leave,) = desk.sent(m.Leave, A)
    assert "install the manager's release" in leave.reason and A in desk.closed()


def test_only_so_many_ended_streams_are_remembered() -> None:
    desk = Desk()
    last = 100 + 2 * REMEMBERED_STREAMS + 20
    for stream in range(100, last, 2):
        desk.server(stream, hello(slots=0))  # refused
        desk.join(stream + 1)
        desk(ServerGone(stream + 1, "killed"))
    ended = desk.manager.components.servers._ended
    found = [stream for stream in range(last + 1) if stream in ended]
    assert found == list(range(last - REMEMBERED_STREAMS, last))


def test_other_programs_are_refused_in_deterministic_runs() -> None:
    desk = Desk()
    desk.join(A, fingerprint="other")  # before anyone knows what to ask for
    desk.open_run()
    assert A in desk.closed() and desk.records("rejected")
    desk.join(B, fingerprint="other")
    assert "fingerprint" in desk.closed()[B]
    desk.join(C, fingerprint="same")
    assert not desk.closed()


def test_a_server_with_another_attention_is_sent_the_reason() -> None:
    """The run's choice travels with its configuration; who runs another could not run that."""
    desk = Desk()
    desk.open_run(reserved=False)
    desk.server(RESERVED, hello(reserved=True, fingerprint="jax0.12.0-NVIDIA_H100-mosaic_gpu-ab"))
    desk.join(A, fingerprint="jax0.12.0-NVIDIA_H100-xla-cd")
    assert "its attention is xla, and this run's is mosaic_gpu" in desk.closed()[A]
    desk.join(B, fingerprint="jax0.12.0-NVIDIA_H100-mosaic_gpu-cd")
    assert "fingerprint" in desk.closed()[B] and "its attention" not in desk.closed()[B]


def test_other_programs_are_welcome_otherwise() -> None:
    desk = Desk(settings(deterministic=False))
    desk.open_run()
    desk.join(A, fingerprint="other")
    assert not desk.closed()


def test_deterministic_runs_give_no_work_before_the_fingerprint_is_known() -> None:
    desk = Desk()
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, version=0)
    desk.begin(0)
    assert not desk.requests()
    desk.server(RESERVED, hello(reserved=True))
    assert desk.requests(A)


def test_names_are_unique_among_the_living() -> None:
    desk = Desk()
    for stream in (A, B, C):
        desk.server(stream, hello(instance="spot"))
    names = [instance.name for instance in desk.manager.view.roster]
    assert names[0] == "spot" and len(set(names)) == 3
    desk(ServerGone(A, "killed"))
    desk.server(20, hello(instance="spot"))
    assert desk.sent(m.Welcome)[0].instance == "spot"
    desk.server(21, hello(instance=""))
    assert desk.sent(m.Welcome)[0].instance
