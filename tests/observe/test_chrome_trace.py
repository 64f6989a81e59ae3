from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.observe.chrome_trace import (
    Doubtful,
    PlacedSpan,
    chrome_trace,
    read_spans,
    spans_path,
    trace_path,
    write_trace,
)
from tests.observe.traces import Trace, assert_nested, load


def span(
    process: str, lane: str, name: str, start: float, seconds: float, **args: Any
) -> PlacedSpan:
    return PlacedSpan(
        process=process, lane=lane, name=name, start=start, seconds=seconds, args=args
    )


SPANS = [
    span("trainer", "learner", "step", 100.0, 2.0),
    span("trainer", "learner", "update", 101.5, 0.25),
    span("trainer", "engine", "dispatch", 100.5, 0.125, sequence=0, tokens=3),
    span("manager", "a", "work", 100.25, 0.0, requests=4),
    span("a", "engine", "dispatch", 100.375, 0.125, sequence=5, tokens=8),
    span("a", "engine", "dispatch", 100.5, 0.125, sequence=6, tokens=8),
    span("manager", "a", "tokens", 100.5625, 0.0625, sequence=5, tokens=8),
    span("manager", "reserved", "tokens", 100.6875, 0.0625, sequence=0, tokens=3),
    span("b", "weights", "pull", 99.0, 0.5, version=1),
]
DOUBTS = {"a": Doubtful(clock_error=0.001, dropped=2), "trainer": Doubtful()}


def test_it_is_a_trace_with_microseconds_from_the_first_begin() -> None:
    trace = Trace(chrome_trace(SPANS, DOUBTS, step=7))
    (step,) = trace.spans("trainer", "learner", "step")
    assert (step["ts"], step["dur"]) == (1e6, 2e6)
    (work,) = trace.spans("manager", "a", "work")
    assert (work["ph"], work["ts"], work["args"]) == ("i", 1.25e6, {"requests": 4})
    assert trace.spans("b", "weights")[0]["ts"] == 0
    assert trace.other == {
        "step": 7,
        "clock_error_seconds": {"a": 0.001, "trainer": 0.0},
        "dropped_spans": {"a": 2, "trainer": 0},
    }


def test_trainer_and_manager_come_first() -> None:
    events = chrome_trace(SPANS, DOUBTS, step=7)["traceEvents"]
    order = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [order[pid] for pid in sorted(order)] == ["trainer", "manager", "a", "b"]


def test_arrows_lead_from_dispatches_to_the_receipt_of_their_tokens() -> None:
    trace = Trace(chrome_trace(SPANS, DOUBTS, step=7))
    ends = [(trace.place(a), a["args"], trace.place(b), b["args"]) for a, b in trace.flows]
    assert [(a[0], a_args["sequence"], b, b_args["sequence"]) for a, a_args, b, b_args in ends] == [
        ("a", 5, ("manager", "a"), 5),
        ("trainer", 0, ("manager", "reserved"), 0),
    ], "and none from the dispatch whose tokens never came"


def test_each_of_several_engines_of_the_trainer_has_its_lane_and_its_arrows() -> None:
    spans = [
        span("trainer", f"engine-{i}", "dispatch", 1.0 + i / 8, 0.5, sequence=0) for i in range(2)
    ]
    spans += [span("manager", f"reserved-{i}", "tokens", 2.0, 0.25, sequence=0) for i in range(2)]
    trace = Trace(chrome_trace(spans, {}, step=7))
    assert [(trace.place(a), trace.place(b)) for a, b in trace.flows] == [
        (("trainer", f"engine-{i}"), ("manager", f"reserved-{i}")) for i in range(2)
    ]


def test_nothing_at_all_is_a_trace() -> None:
    assert Trace(chrome_trace([], {}, step=1)).events == []


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    path = trace_path(tmp_path, 7)
    write_trace(path, SPANS, DOUBTS, step=7)
    assert load(path) == chrome_trace(SPANS, DOUBTS, step=7)
    assert [p.name for p in path.parent.iterdir()] == ["step_7.trace.json.gz"]


def test_spans_that_were_collected_are_read_and_half_a_line_is_passed_over(tmp_path: Path) -> None:
    path = spans_path(tmp_path, 7)
    path.parent.mkdir()
    path.write_text(
        '{"process": "a", "name": "n", "lane": "l", "start": 1.5, "seconds": 2.0, "args": {}}\n'
        '{"process": "a", "clock_error": 0.25, "dropped": 1}\n'
        '{"process": "a", "clock_error": 0.125, "dropped": 3}\n'
        '{"process": "a", "name": "n", "lane": "l", "sta'
    )
    spans, doubts = read_spans(path)
    assert spans == [span("a", "l", "n", 1.5, 2.0)]
    assert doubts == {"a": Doubtful(clock_error=0.25, dropped=4)}
    assert read_spans(tmp_path / "none") == ([], {})


def test_the_check_of_nesting_finds_what_overlaps() -> None:
    assert_nested([{"ts": 0.0, "dur": 2.0}, {"ts": 1.0, "dur": 1.0}, {"ts": 2.0, "dur": 1.0}])
    with pytest.raises(AssertionError):
        assert_nested([{"ts": 0.0, "dur": 2.0}, {"ts": 1.0, "dur": 2.0}])
