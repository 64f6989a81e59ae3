"""When somebody is called, who, and what is said."""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from configs import base
from rlboost_jax.observe import alert_process
from rlboost_jax.observe.alert_process import watch_run
from rlboost_jax.observe.events_file import EventsWriter
from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.json_lines import read_lines
from rlboost_jax.observe.metrics import metrics_row
from rlboost_jax.settings.alerts_config import AlertsConfig
from rlboost_jax.settings.config_loading import run_config, write_run_config
from tests.observe.conftest import EPOCH, row
from tests.patience import PATIENCE_SECONDS

# Appends what it is given to the file that it is given.
NOTE = """
import os, sys
print(os.environ['RLBOOST_ALERT'], sys.stdin.read(), file=open(sys.argv[1], 'a'))
"""
STEPS = 30


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is called may take long to hear it."""
    for name in ("COMMAND_SECONDS", "WEBHOOK_SECONDS"):
        monkeypatch.setattr(alert_process, name, PATIENCE_SECONDS)


class Story:
    """A run that a test writes while it is watched, a look a second."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder, self.now = folder, 0.0
        run = run_config(base.get_config())
        alerts = AlertsConfig(**settings)  # type: ignore[arg-type]
        run = replace(run, num_steps=STEPS, observe=replace(run.observe, alerts=alerts))
        write_run_config(folder / "config.json", run, "abc123")

    def watch(self, seconds: int, begin: float = 0.0) -> list[str]:
        """The kinds of what is given within so many seconds, after which the trainer is gone."""
        self.now = begin
        before = len(list(read_lines(self.folder / "alerts.jsonl")))

        def wait(step: float) -> None:
            self.now += step

        watch_run(
            self.folder,
            lives=lambda: self.now < begin + seconds,
            clock=lambda: self.now,
            wait=wait,
        )
        return [line["kind"] for line in read_lines(self.folder / "alerts.jsonl")][before:]

    def write(self, rewards: list[float]) -> None:
        with FilesTracker(self.folder) as files:
            for step, reward in enumerate(rewards):
                files.step(metrics_row(row(step, reward_mean=reward, cost_dollars=1.0)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("steps", "kind"), [(STEPS, "end"), (STEPS - 1, "break"), (0, "break")])
def test_how_a_run_ended(folder: Path, steps: int, kind: str) -> None:
    said = folder.parent / "said"
    story = Story(folder, command=(sys.executable, "-c", NOTE, str(said)))
    story.write([1.0] * steps)
    assert story.watch(2) == [kind]
    name, _, text = said.read_text().partition(" ")
    alert = json.loads(text)
    assert (name, alert["kind"], alert["run"], alert["step"]) == (kind, kind, "run", steps - 1)


def test_a_reward_that_falls_is_said_once_a_run(folder: Path) -> None:
    story = Story(folder, reward_share=0.5)
    story.write([1.0] * 12 + [0.0] * 5)
    assert story.watch(2) == ["break"], "ten steps have a mean of 0.5, which is not below it"
    story.write([1.0] * 12 + [0.0] * 6)
    assert story.watch(2) == ["reward", "break"]
    assert story.watch(2) == ["break"]


def test_money_is_said_once_a_run(folder: Path) -> None:
    story = Story(folder, spend_dollars=4.5)
    story.write([1.0] * 4)
    assert story.watch(2) == ["break"]
    story.write([1.0] * 5)
    assert story.watch(2) == ["spend", "break"]
    assert story.watch(2) == ["break"]


def test_no_server_for_minutes(folder: Path) -> None:
    story = Story(folder, no_server_minutes=2.0)
    assert story.watch(119) == ["break"]
    assert story.watch(121) == ["servers", "break"]
    with EventsWriter(folder) as writer:
        for kind in ("joined", "ready"):
            writer.write(time=EPOCH, step=0, kind=kind, instance="spot-1")
    assert story.watch(300) == ["break"]


def test_a_durable_checkpoint_that_falls_behind(folder: Path) -> None:
    story = Story(folder)
    with FilesTracker(folder) as files:
        for step in range(6):
            files.step(metrics_row(row(step, durable_step=0)))
    assert story.watch(2) == ["break"]
    with FilesTracker(folder, step=6) as files:
        files.step(metrics_row(row(6, durable_step=0)))
    assert story.watch(2) == ["checkpoint", "break"]
    alert = list(read_lines(folder / "alerts.jsonl"))[-2]
    assert alert["text"] == "checkpoint 0 is the newest durable, 6 steps behind"


def test_what_fails_is_kept_and_harms_nothing(folder: Path) -> None:
    story = Story(folder, command=("/no/such/program",), webhook_file="/no/such/file")
    assert story.watch(1) == ["break"]
    (line,) = read_lines(folder / "alerts.jsonl")
    assert line["failures"] == ["command: FileNotFoundError", "webhook: FileNotFoundError"]


class Hook(BaseHTTPRequestHandler):
    bodies: ClassVar[list[dict[str, object]]] = []

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200 if self.path.endswith("secret") else 500)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_webhook_is_sent_what_is_the_matter(folder: Path, hook: str) -> None:
    """And its address, a secret, is written nowhere."""
    file = folder.parent / "hook"
    story = Story(folder, webhook_file=str(file))
    for path, failures in (("/secret", []), ("/wrong", ["webhook: HTTPError"])):
        file.write_text(hook + path + "\n")
        assert story.watch(1) == ["break"]
        assert list(read_lines(folder / "alerts.jsonl"))[-1]["failures"] == failures
        assert Hook.bodies[-1]["text"] == "run: the trainer ended after 0 of 30 steps; " + (
            "the same command goes on"
        )
    assert not any(hook in path.read_text() for path in folder.rglob("*") if path.is_file())
