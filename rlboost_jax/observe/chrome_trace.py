"""Spans of many processes as one trace that ui.perfetto.dev and chrome://tracing open.

Source: the Trace Event Format of Chromium, "JSON Object Format": complete events (X), instants
(i), flows from a dispatch to the receipt of its tokens (s, f), names of processes and threads
(M); times in microseconds.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlboost_jax.observe.json_lines import read_lines
from rlboost_jax.observe.span_recorder import ENGINE_LANE

FOLDER: Final = "profile"
FIRST: Final = ("trainer", "manager")  # processes in this order, then servers by name
RESERVED: Final = "reserved"  # how the instances of `learner/fleet/reserved.py` begin
LANES: Final = ("learner", "publisher", "step", "seeding window", "placement", "fleet", "engine")


@dataclass(frozen=True, kw_only=True)
class PlacedSpan:
    """A span of one of the processes, all on one clock."""

    process: str
    lane: str
    name: str
    start: float  # seconds
    seconds: float  # 0: a moment
    args: Mapping[str, Any]

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True, kw_only=True)
class Doubtful:
    """Possible errors of a process's spans as a whole."""

    clock_error: float = 0.0  # seconds by which its starts may be off against the manager's
    dropped: int = 0  # spans that there was no room for

    def and_also(self, other: "Doubtful") -> "Doubtful":
        """Possible errors of the spans of both."""
        return Doubtful(
            clock_error=max(self.clock_error, other.clock_error),
            dropped=self.dropped + other.dropped,
        )


def spans_path(workdir: str | Path, step: int) -> Path:
    """File in which the manager collects the spans of a step, a line each."""
    return Path(workdir) / FOLDER / f"step_{step}.jsonl"


def trace_path(workdir: str | Path, step: int) -> Path:
    return Path(workdir) / FOLDER / f"step_{step}.trace.json.gz"


def read_spans(path: Path) -> tuple[list[PlacedSpan], dict[str, Doubtful]]:
    """Read what the manager's `span_file.py` wrote, and the possible errors by process.

    Broken lines are left out.
    """
    spans: list[PlacedSpan] = []
    doubts: dict[str, Doubtful] = {}
    for line in read_lines(path):
        if "name" in line:
            spans.append(PlacedSpan(**line))
        else:
            process = line.pop("process")
            doubts[process] = doubts.get(process, Doubtful()).and_also(Doubtful(**line))
    return spans, doubts


def write_trace(
    path: Path, spans: Sequence[PlacedSpan], doubts: Mapping[str, Doubtful], *, step: int
) -> None:
    """Write a gzipped trace in one piece."""
    part = path.with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(part, "wt", encoding="utf-8") as file:
        json.dump(chrome_trace(spans, doubts, step=step), file)
    part.replace(path)


def chrome_trace(
    spans: Sequence[PlacedSpan], doubts: Mapping[str, Doubtful], *, step: int
) -> dict[str, Any]:
    """Trace for JSON. Time 0 is the first span's begin."""
    origin = min((span.start for span in spans), default=0.0)
    places = _places(spans)
    events = [*_names(places), *_flows(spans, places, origin)]
    for span in spans:
        pid, tid = places[span.process, span.lane]
        shape = {"dur": _microseconds(span.seconds)} if span.seconds else {"s": "t"}
        event = {
            "ph": "X" if span.seconds else "i",
            "name": span.name,
            "cat": span.lane,
            "pid": pid,
            "tid": tid,
            "ts": _microseconds(span.start - origin),
            "args": dict(span.args),
        }
        events.append(event | shape)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "step": step,
            "clock_error_seconds": {name: doubt.clock_error for name, doubt in doubts.items()},
            "dropped_spans": {name: doubt.dropped for name, doubt in doubts.items()},
        },
    }


def _places(spans: Iterable[PlacedSpan]) -> dict[tuple[str, str], tuple[int, int]]:
    """Process and thread number of each (process, lane)."""
    lanes: dict[str, set[str]] = {}
    for span in spans:
        lanes.setdefault(span.process, set()).add(span.lane)
    return {
        (process, lane): (pid, tid)
        for pid, process in enumerate(sorted(lanes, key=lambda name: _rank(name, FIRST)), 1)
        for tid, lane in enumerate(sorted(lanes[process], key=lambda name: _rank(name, LANES)), 1)
    }


def _rank(name: str, first: Sequence[str]) -> tuple[int, str]:
    return (first.index(name) if name in first else len(first)), name


def _names(places: Mapping[tuple[str, str], tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for process, pid in {process: pid for (process, _), (pid, _) in places.items()}.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for (_, lane), (pid, tid) in places.items():
        where = {"ph": "M", "pid": pid, "tid": tid}
        yield where | {"name": "thread_name", "args": {"name": lane}}
        yield where | {"name": "thread_sort_index", "args": {"sort_index": tid}}


def _flows(
    spans: Sequence[PlacedSpan], places: Mapping[tuple[str, str], tuple[int, int]], origin: float
) -> Iterator[dict[str, Any]]:
    """Arrows from each dispatch to the receipt of its tokens.

    The receipt is the next span with the dispatch's sequence number on the manager's lane for that
    server.
    """
    waiting: dict[tuple[str, str, int], PlacedSpan] = {}
    number = 0
    for span in sorted(spans, key=lambda span: span.end):
        sequence = span.args.get("sequence", -1)
        if span.name == "dispatch":
            waiting[span.process, span.lane, sequence] = span
        elif span.process == "manager" and span.name == "tokens":
            sent = waiting.pop((*_engine_of(span.lane), sequence), None)
            if sent is None:
                continue
            number += 1
            ends = (
                ("s", sent, sent.end - min(1e-6, sent.seconds / 2)),  # within the dispatch
                ("f", span, span.start),
            )
            for phase, at, moment in ends:
                pid, tid = places[at.process, at.lane]
                flow = {"ph": phase, "id": number, "name": "tokens", "cat": "tokens"}
                where = {"pid": pid, "tid": tid, "ts": _microseconds(moment - origin)}
                yield flow | where | ({"bp": "e"} if phase == "f" else {})


def _engine_of(instance: str) -> tuple[str, str]:
    """Process and lane of an instance's dispatches: the trainer's own engines are its threads."""
    if instance.startswith(RESERVED):
        return FIRST[0], instance.replace(RESERVED, ENGINE_LANE, 1)
    return instance, ENGINE_LANE


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
