"""What a page hears of a run, while its files are written, rewritten and cut off."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.observe.events_file import EventsWriter, read_events
from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.history import WARMUP
from rlboost_jax.observe.metrics import MEANINGS, metrics_row, read_metrics
from rlboost_jax.observe.page.file_tail import FileTail
from rlboost_jax.observe.page.page_stream import Cursor, life_values
from rlboost_jax.observe.page.prometheus import metrics_text
from rlboost_jax.observe.page.run_view import RunView
from rlboost_jax.observe.timeline import lives
from tests.observe.conftest import row, sample


class Reader:
    """A page: what it was sent, put together."""

    def __init__(self, workdir: Path) -> None:
        self.view, self.cursor = RunView(workdir), Cursor("run")
        self.steps: list[int] = []
        self.rewards: list[float] = []
        self.lives: dict[int, dict[str, Any]] = {}
        self.heard: list[str] = []
        self.supervised: list[float] = []

    def read(self) -> None:
        self.view.poll()
        self.heard = []
        for name, value in json.loads(json.dumps(list(self.cursor.messages(self.view)))):
            self.heard.append(name)
            if name == "begin":
                self.steps, self.rewards, self.lives = [], [], {}
                self._add(value["points"])
                self._live(value["lives"])
                self.supervised = value["supervised"]
            elif name == "supervised":
                self.supervised = value
            elif name == "points":
                self._add(value)
            elif name == "lives":
                self._live(value["lives"])

    def _add(self, columns: dict[str, list[Any]]) -> None:
        self.steps += columns.get("step", [])
        self.rewards += columns.get("reward_mean", [])

    def _live(self, changed: list[dict[str, Any]]) -> None:
        self.lives |= {life["number"]: life for life in changed}


@pytest.fixture
def reader(workdir: Path) -> Iterator[Reader]:
    reader = Reader(workdir)
    with reader.view:
        yield reader


def test_everything_at_first_then_what_is_new(workdir: Path, reader: Reader) -> None:
    reader.read()
    rows = read_metrics(workdir)
    assert reader.heard == ["begin"] and reader.rewards == [row["reward_mean"] for row in rows]
    everyone = lives(read_events(workdir))
    assert list(reader.lives.values()) == [life_values(life) for life in everyone]
    reader.read()
    assert reader.heard == []
    with EventsWriter(workdir) as writer:
        writer.write(time=2e9, step=60, kind="joined", instance="late")
    reader.read()
    assert reader.heard == ["lives", "news"]
    assert [life["instance"] for life in reader.lives.values() if life["begin"] > 1e8] == ["late"]
    with FilesTracker(workdir, step=60) as files:
        files.step(metrics_row(row(60)))
    reader.read()
    assert reader.steps == list(range(61))

    with open(workdir / WARMUP, "a") as file:
        for losses, said in (((2.5,), [1, 2.5, 2.5]), ((2.0, 1.5), [3, 2.5, 1.5])):
            for loss in losses:
                file.write(json.dumps({"step": 0, "loss": loss}) + "\n")
            file.flush()
            reader.read()
            assert reader.heard == ["supervised"] and reader.supervised == said
    again = Reader(workdir)
    with again.view:
        again.read()
        assert again.heard == ["begin"] and again.supervised == said


def test_a_run_that_goes_back_is_sent_anew(workdir: Path, reader: Reader) -> None:
    """It has written other rows of the steps that it did again."""
    reader.read()
    with FilesTracker(workdir, step=50) as files:
        files.step(metrics_row(row(50, reward_mean=0.125)))
    reader.read()
    assert reader.heard == ["begin"]
    assert reader.steps == list(range(51)) and reader.rewards[-1] == 0.125


def test_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with FileTail(path) as tail:
        assert tail.lines() == []
        path.write_bytes(b"one\ntw")
        assert tail.lines() == [(0, b"one")]
        with open(path, "ab") as file:
            file.write(b"o\n")
        assert tail.lines() == [(4, b"two")]
        os.replace(path, tmp_path / "old")
        path.write_bytes(b"anew\n")
        assert tail.lines() == [(0, b"anew")] and tail.replaced == 1


def test_a_folder_without_a_run_says_nothing(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    with reader.view:
        reader.read()
        assert reader.heard == []


def test_samples_are_found_where_they_lie(workdir: Path, reader: Reader) -> None:
    text = "ﷺ \u2028 <b>five</b> 🙂"
    with FilesTracker(workdir) as files:
        for step in (0, 10):
            files.samples(
                [sample(step=step, sample=i, response_text=f"{text} {i}") for i in (0, 1)]
            )
    index = reader.view.samples
    newest, oldest = index.entries()
    assert (newest["step"], oldest["step"], newest["responses"]) == (10, 0, 2)
    assert newest["digest"] == oldest["digest"], "the same prompt"
    group = index.group(newest["id"])
    assert group is not None
    assert [row["response_text"] for row in group["rows"]] == [f"{text} 0", f"{text} 1"]
    assert [e["step"] for e in index.entries("FIVE")] == [10, 0] and not index.entries("six")
    assert index.group("7-7") is None


def parsed(text: str) -> dict[str, float]:
    """A second reading of the format: {name with labels: value}."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_numbers_for_prometheus_are_those_of_the_files(workdir: Path, reader: Reader) -> None:
    reader.read()
    text = metrics_text(reader.view, name='a"\\\nb')
    numbers, rows = parsed(text), read_metrics(workdir)
    for key in MEANINGS:
        value = rows[-1][key]
        if isinstance(value, int | float):
            assert numbers[f"rlboost_{key}"] == value, key
        else:
            assert f"rlboost_{key}" not in numbers
    spent = sum(row["cost_dollars"] for row in rows)
    assert numbers["rlboost_run_cost_dollars_total"] == pytest.approx(spent)
    lost = sum(event["kind"] == "lost" for event in read_events(workdir))
    assert numbers['rlboost_events_total{kind="lost"}'] == lost
    assert numbers['rlboost_events_total{kind="quarantined"}'] == 0, "so that the first is a rise"
    assert numbers['rlboost_run_info{run="a\\"\\\\\\nb"}'] == 1
    described = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(described) == len(set(described))
    assert {name.partition("{")[0] for name in numbers} == set(described)


def test_a_day_of_events_is_bounded(tmp_path: Path, workdir: Path) -> None:
    with open(workdir / "events.jsonl", "w") as file:
        for number in range(8_000):
            for place, kind in enumerate(("joined", "lost")):
                event = {"time": number + place / 2, "step": 0, "kind": kind, "detail": {}}
                file.write(json.dumps({**event, "instance": f"spot-{number}"}) + "\n")
    reader = Reader(workdir)
    with reader.view:
        reader.read()
        assert len(reader.lives) <= 3_000 and len(reader.view.news) <= 200
        assert reader.lives[max(reader.lives)]["instance"] == "spot-7999"
