"""What any trace must be, by any writer; after Chromium's Trace Event Format."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

ROUNDING = 0.002  # microseconds: two times in thousandths of them
FIELDS = {  # of each phase, beside ph and pid
    "X": {"name", "cat", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "tid", "ts", "s", "args"},
    "s": {"name", "cat", "tid", "ts", "id"},
    "f": {"name", "cat", "tid", "ts", "id", "bp"},
}


def load(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return trace


class Trace:
    """A checked trace: spans and moments by (process, lane), each in order of time."""

    def __init__(self, trace: dict[str, Any]) -> None:
        assert trace.keys() == {"traceEvents", "displayTimeUnit", "otherData"}
        self.events = trace["traceEvents"]
        self.other = trace["otherData"]
        self._processes = self._named("process_name", "pid")
        self._lanes = self._named("thread_name", "pid", "tid")
        self.lanes: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for event in self.events:
            if event["ph"] != "M":
                self._check(event)
            if event["ph"] in "Xi":
                self.lanes[self.place(event)].append(event)
        for lane in self.lanes.values():
            lane.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
            assert_nested([event for event in lane if event["ph"] == "X"])
        self.flows = self._flows()

    def place(self, event: dict[str, Any]) -> tuple[str, str]:
        return self._processes[event["pid"],], self._lanes[event["pid"], event["tid"]]

    def spans(self, process: str, lane: str, name: str = "") -> list[dict[str, Any]]:
        found = self.lanes.get((process, lane), [])
        return [event for event in found if name in ("", event["name"])]

    def error(self, process: str) -> float:
        """Microseconds by which a process may be off against the manager."""
        return float(self.other["clock_error_seconds"][process]) * 1e6 + ROUNDING

    def _named(self, kind: str, *keys: str) -> dict[tuple[int, ...], str]:
        found = [e for e in self.events if e["ph"] == "M" and e["name"] == kind]
        names = {tuple(e[key] for key in keys): e["args"]["name"] for e in found}
        assert len(names) == len(found), f"two names in {kind}"
        return names

    def _check(self, event: dict[str, Any]) -> None:
        assert event.keys() == FIELDS[event["ph"]] | {"ph", "pid"}, event
        assert isinstance(event["name"], str) and event["name"]
        assert self.place(event), "its process and lane have names"
        for key in ("ts", "dur"):
            assert isinstance(event.get(key, 0.0), int | float) and event.get(key, 0.0) >= 0
        assert all(isinstance(v, str | int | float) for v in event.get("args", {}).values())

    def _flows(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Each from the span that it starts in to the span that it ends in."""
        starts = {e["id"]: e for e in self.events if e["ph"] == "s"}
        ends = {e["id"]: e for e in self.events if e["ph"] == "f"}
        assert starts.keys() == ends.keys()
        return [(self._around(starts[i]), self._around(ends[i])) for i in starts]

    def _around(self, flow: dict[str, Any]) -> dict[str, Any]:
        (span,) = [
            span
            for span in self.lanes[self.place(flow)]
            if span["ph"] == "X"
            and span["ts"] - ROUNDING <= flow["ts"] <= span["ts"] + span["dur"] + ROUNDING
            and "sequence" in span["args"]
        ][:1]
        return span


def assert_nested(spans: list[dict[str, Any]]) -> None:
    """Each begins after the one before has ended, or lies in it; `spans` are in order."""
    around: list[float] = []  # ends of the spans that are open
    for span in spans:
        while around and around[-1] <= span["ts"] + ROUNDING:
            around.pop()
        end = span["ts"] + span["dur"]
        assert not around or end <= around[-1] + ROUNDING, span
        around.append(end)
