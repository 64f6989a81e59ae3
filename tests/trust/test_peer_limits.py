"""What a peer may send, decided without a clock."""

import math

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.policies.throughput import MAX_KINDS, MIN_SAMPLES, ThroughputProfile
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.trust import peer_limits
from rlboost_jax.trust.peer_limits import (
    ALLOWANCE,
    Allowance,
    Bucket,
    Callers,
    Meter,
    server_frame_bytes,
)
from tests.manager.desk import Desk, seeded
from tests.manager.fakes import batch, hello, ready, settings

A, B = 11, 12


def taken(bucket: Bucket, moments: list[float]) -> list[bool]:
    return [bucket.take(1, now) for now in moments]


def test_a_bucket_lets_a_burst_and_then_a_rate_through() -> None:
    bucket = Bucket(rate=2.0, burst=3.0)
    assert taken(bucket, [5.0] * 5) == [True, True, True, False, False]
    assert taken(bucket, [5.4, 5.5, 5.6, 6.0]) == [False, True, False, True]
    assert taken(bucket, [1000.0] * 4) == [True, True, True, False]  # no more than a burst


def test_a_clock_that_stands_still_fills_nothing() -> None:
    bucket = Bucket(rate=1e9, burst=1.0)
    assert taken(bucket, [1.0, 1.0, 0.5]) == [True, False, False]


def test_over_long_the_rate_is_all_there_is() -> None:
    bucket = Bucket(rate=10.0, burst=50.0)
    passed = sum(taken(bucket, [i / 1000 for i in range(100_000)]))  # 1,000 a second for 100 s
    assert passed == pytest.approx(50 + 10 * 100, abs=2)


def test_a_meter_counts_frames_and_bytes() -> None:
    frames, data = Meter(), Meter()
    assert not any(frames.objection(0, 0.0) for _ in range(ALLOWANCE.frame_burst))
    assert "frames per second" in frames.objection(0, 0.0)
    half = ALLOWANCE.byte_burst // 2
    assert [bool(data.objection(half, 0.0)) for _ in range(3)] == [False, False, True]
    assert "bytes per second" in data.objection(half, 0.0)
    assert not data.objection(half, 10.0)


def test_the_callers_remembered_are_bounded() -> None:
    callers = Callers(Allowance(max_callers=3, stream_burst=2))
    assert [callers.admit("a", 0.0) for _ in range(3)] == [True, True, False]
    assert callers.admit("b", 0.0), "another address has its own share"
    assert all(callers.admit(str(i), 0.0) for i in range(100))
    assert len(callers._buckets) == 3


def dispatch() -> m.Span:
    """The longest that an honest server sends."""
    big = 2**31 - 1
    args = dict.fromkeys(("sequence", "tokens", "rollouts", "running", "waiting"), big)
    return m.Span(name="dispatch", lane="engine", start=1e7 + 1e-6, seconds=0.123456, args=args)


def outcome() -> m.SourceOutcome:
    """The longest."""
    return m.SourceOutcome(
        source="s" * 100, fetched_bytes=2**53 - 1, seconds=1e7 + 1e-6, fault="unreachable"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"start": float("nan")}, {"start": 1e300}, {"seconds": -1.0}, {"name": "n" * 201},
        {"lane": "a\nb"}, {"args": {"a b": 1}}, {"args": {"a": 2**60}}, {"args": {"a": "\x1b"}},
        {"args": {"a": float("inf")}}, {"args": {str(i): i for i in range(9)}},
    ],
)  # fmt: skip
def test_a_span_that_no_trace_wants(changes: dict[str, object]) -> None:
    span = m.msgspec.structs.replace(dispatch(), **changes)
    for spans in ((span,), (dispatch(),) * (m.MAX_SPANS + 1)):
        with pytest.raises(m.msgspec.ValidationError):
            m.decode_server(m.encode(m.Spans(spans=spans, clock_error=0.0)))


@pytest.mark.parametrize(
    ("slots", "slot_tokens", "max_pending"), [(1, 2, 0), (64, 208, 8), (256, 8192, 64)]
)
def test_the_largest_honest_frames_pass(slots: int, slot_tokens: int, max_pending: int) -> None:
    ids = list(range(2**32 - slots - max_pending, 2**32))
    row = list(range(slot_tokens))
    frames: list[m.ServerMessage] = [
        m.Released(request_ids=m.pack_ids(ids)),
        batch(2**52, 2**52, [(i, row) for i in ids[:slots]], in_flight=2**30, running=slots),
        m.WeightsRejected(version=1, reason="ü" * m.MAX_REASON),
        m.Goodbye(reason="ü" * m.MAX_REASON),
        m.Spans(spans=(dispatch(),) * m.MAX_SPANS, clock_error=1e-3, dropped=2**31 - 1),
        hello(
            instance="i" * 100,
            zone="z" * 200,
            host="h" * 200,
            device="d" * 200,
            peer=m.PeerOffer(
                address="h" * 190 + ":65535",
                key=bytes(64),
                certificate=bytes(m.MAX_CERTIFICATE),
            ),
        ),
        m.SourcesUsed(
            root="r" * 64,
            outcomes=(outcome(),) * m.MAX_OUTCOMES,
            outside_bytes=2**53 - 1,
            wasted_bytes=2**53 - 1,
        ),
    ]
    bound = server_frame_bytes(slots=slots, slot_tokens=slot_tokens, max_pending=max_pending)
    for frame in frames:
        data = m.encode(frame)
        assert len(data) <= bound, type(frame).__name__
        assert m.decode_server(data) == frame
    # … and the bound is not generous: two such batches in one do not.
    whole = len(m.encode(frames[1]))
    assert bound < 2 * whole + 8192


@pytest.mark.parametrize(
    "changes",
    [
        {"instance": "a b"}, {"instance": "n\n"}, {"instance": "x" * 101}, {"instance": "<b>"},
        {"zone": "\x1b[2J"}, {"host": "h\n"}, {"device": "d" * 201}, {"fingerprint": "f\x00"},
        {"slots": -1}, {"slots": 2**31}, {"nonce": "a b"}, {"slot_tokens": 2**40},
    ],
)  # fmt: skip
def test_an_introduction_that_nobody_wants_to_read(changes: dict[str, object]) -> None:
    with pytest.raises(m.msgspec.ValidationError):
        m.decode_server(m.encode(hello(**changes)))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_seconds_are_numbers_that_json_has(seconds: float) -> None:
    frame = m.Ready(version=1, params_digest="d", seconds=seconds)
    with pytest.raises(m.msgspec.ValidationError):
        m.decode_server(m.encode(frame))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"in_flight": 33}, "in_flight = 33 where 2 slots allow 32"),
        ({"running": 3}, "running = 3 where 2 slots allow 2"),
    ],
)
def test_a_batch_of_what_cannot_be_charges_nobody(changes: dict[str, int], words: str) -> None:
    desk = Desk()
    desk.open_run()
    desk.publish(0)
    desk.begin(0)
    desk.join(A, version=0)
    before = desk.manager.view.books.copy()
    desk.server(A, batch(0, 0, [], **changes))
    assert words in desk.closed()[A]
    after = desk.manager.view.books
    assert (after.generated, after.lost) == (before.generated, before.lost)


def test_chatter_ends_its_own_stream_and_fills_no_log() -> None:
    for chatter in (m.WeightsRejected(version=0, reason="because"), ready(0)):
        desk = seeded()
        desk.publish(0)
        desk.join(A)
        desk.join(B, version=0)
        lines = 0
        for _ in range(1000):
            desk.server(A, chatter)
            if A not in desk.manager.view.instances:
                break
            lines += sum(len(desk.records(kind)) for kind in ("rejected", "pulled", "ready"))
        assert A in desk.closed() and "per second" in desk.closed()[A]
        assert lines <= 3 * peer_limits.REMARK_BURST
        assert [i.stream for i in desk.manager.view.roster if not i.reserved] == [B]


def test_an_honest_pace_of_failures_goes_on_for_ever() -> None:
    """A download that fails is tried again every 2 s."""
    desk = seeded()
    desk.publish(0)
    desk.join(A)
    for i in range(1000):
        desk.now = 2.0 * i
        desk.server(A, m.WeightsRejected(version=0, reason="because"))
        assert desk.records("rejected")


def test_a_fleet_has_a_size() -> None:
    roster = Roster(settings(max_servers=2), 0.0)
    for stream in (A, B):
        assert not roster.objection(hello())
        roster.join(stream, hello(), 0.0)
    assert "2 instances already" in roster.objection(hello())
    assert not roster.objection(hello(reserved=True)), "the trainer's own always has a place"


def test_the_kinds_of_a_profile_are_bounded() -> None:
    profile = ThroughputProfile()
    for step in range(20):
        for kind in range(100):
            for size in (1, 2):
                for _ in range(MIN_SAMPLES):
                    profile.add((step, kind), batch=size, tokens=size, seconds=1.0, context=1.0)
        profile.end_step()
        assert len(profile._last) <= MAX_KINDS
    assert profile.plateau((19, 0), context=1.0) == 2, "the newest are known"
    assert profile.plateau((0, 0), context=1.0) == 0


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0])
def test_a_trainers_seconds_are_a_number(seconds: float) -> None:
    """They are written to events.jsonl, which is JSON and knows no others."""
    good = m.BatchTrained(batch=0, train_wait_seconds=0.0, train_seconds=1.5)
    assert m.decode_trainer(m.encode(good)) == good
    for name in ("train_wait_seconds", "train_seconds"):
        bad = msgspec.structs.replace(good, **{name: seconds})
        with pytest.raises(msgspec.ValidationError):
            m.decode_trainer(m.encode(bad))
