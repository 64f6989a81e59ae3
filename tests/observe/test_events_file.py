import json
from pathlib import Path

from rlboost_jax.observe.events_file import EventsWriter, read_events


def test_a_line_per_event_at_once(tmp_path: Path) -> None:
    with EventsWriter(tmp_path) as writer:
        writer.write(time=1.5, step=0, kind="joined", instance="a", detail={"zone": "x"})
        line = (tmp_path / "events.jsonl").read_text()
    assert line.endswith("\n")
    assert json.loads(line) == {
        "time": 1.5,
        "step": 0,
        "kind": "joined",
        "instance": "a",
        "detail": {"zone": "x"},
    }
    assert list(json.loads(line)) == ["time", "step", "kind", "instance", "detail"]


def test_a_restarted_manager_goes_on(tmp_path: Path) -> None:
    for time in (1.0, 2.0):
        with EventsWriter(tmp_path) as writer:
            writer.write(time=time, step=0, kind="resumed")
    assert [event["time"] for event in read_events(tmp_path)] == [1.0, 2.0]


def test_a_line_cut_off_by_a_kill_costs_that_line_only(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"time": 1.0, "kind": "joi')
    with EventsWriter(tmp_path) as writer:
        writer.write(time=2.0, step=0, kind="ready", instance="a")
    assert [event["kind"] for event in read_events(tmp_path)] == ["ready"]
