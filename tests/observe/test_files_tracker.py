"""Rows of a run whose disk does not answer, or fails."""

import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.json_lines import StepLines
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.platform import disk_thread
from rlboost_jax.platform.disk_thread import DiskStalled
from tests.observe.conftest import sample
from tests.patience import PATIENCE_SECONDS


class Disk:
    """Whose writes wait until it answers; the first may fail then."""

    def __init__(self, error: Exception | None = None) -> None:
        self.answers, self.asked, self.error = threading.Event(), threading.Event(), error

    def lines(self, path: Path, *, step: int) -> StepLines:
        disk = self

        class OnDisk(StepLines):
            def write(self, objects: Iterable[Mapping[str, Any]]) -> None:
                disk.asked.set()
                assert disk.answers.wait(PATIENCE_SECONDS)
                error, disk.error = disk.error, None
                if error is not None:
                    raise error
                super().write(objects)

        return OnDisk(path, step=step)


def test_steps_go_on_while_the_disk_does_not_answer_and_no_row_is_lost(tmp_path: Path) -> None:
    disk = Disk()
    with FilesTracker(tmp_path, lines=disk.lines) as files:
        for step in range(20):
            files.samples([sample(step=step)])
            files.step({"step": step})
        assert disk.asked.wait(PATIENCE_SECONDS) and not read_metrics(tmp_path)
        disk.answers.set()
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(20))
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 20


def test_a_checkpoint_waits_for_the_rows_before_it(tmp_path: Path) -> None:
    disk, counted = Disk(), []
    with FilesTracker(tmp_path, lines=disk.lines) as files:
        files.step({"step": 0})

        def count() -> None:
            files.written()
            counted.append(len(read_metrics(tmp_path)))

        checkpoint = threading.Thread(target=count)
        checkpoint.start()
        assert disk.asked.wait(PATIENCE_SECONDS) and not counted
        disk.answers.set()
        checkpoint.join(PATIENCE_SECONDS)
    assert counted == [1]
    files.written()  # by a checkpoint that is later than the end


def test_what_a_checkpoint_waits_for_is_on_the_device_too(tmp_path: Path) -> None:
    synced: dict[str, int] = {}

    class Synced(StepLines):
        def sync(self) -> None:
            super().sync()
            synced[self._path.name] = len(self._path.read_text().splitlines())

    with FilesTracker(tmp_path, lines=Synced) as files:
        files.step({"step": 0})
        files.samples([sample(step=0), sample(step=0)])
        files.sync()
        assert synced == {"metrics.jsonl": 1, "samples.jsonl": 2}


def test_too_many_rows_wait_for_the_disk(tmp_path: Path) -> None:
    disk, done = Disk(), []
    with FilesTracker(tmp_path, lines=disk.lines, most_waiting=2) as files:

        def steps() -> None:
            for step in range(3):
                files.step({"step": step})
                done.append(step)

        run = threading.Thread(target=steps)
        run.start()
        run.join(0.05)
        assert run.is_alive() and len(done) <= 2
        disk.answers.set()
        run.join(PATIENCE_SECONDS)
    assert done == [0, 1, 2]


def test_after_a_row_that_cannot_be_written_there_is_none(tmp_path: Path) -> None:
    """A gap would look like a step that was never done."""
    disk = Disk(OSError("no room"))
    files = FilesTracker(tmp_path, lines=disk.lines)
    files.step({"step": 0})
    files.step({"step": 1})
    disk.answers.set()
    for call in (files.written, files.sync, lambda: files.step({"step": 2}), files.close):
        with pytest.raises(OSError, match="no room"):
            call()
    assert not read_metrics(tmp_path)


def test_a_disk_that_never_answers_ends_the_run_and_is_waited_for_by_nobody(
    tmp_path: Path,
) -> None:
    """Its rows, what waits for them, and the end."""
    disk, seconds = Disk(), 10_000.0
    files = FilesTracker(tmp_path, lines=disk.lines, most_waiting=2, disk_seconds=seconds)
    files.step({"step": 0})
    files.step({"step": 1})
    heard: list[str] = []

    def a_row_too_many() -> None:
        try:
            files.step({"step": 2})
        except DiskStalled as stall:
            heard.append(str(stall))

    run = threading.Thread(target=a_row_too_many)
    run.start()
    assert disk.asked.wait(PATIENCE_SECONDS)
    while run.is_alive():
        disk_thread.look_at_all(seconds)
    (line,) = heard
    assert re.match(rf"rows of metrics and samples got nothing done for \d+ s in {tmp_path}", line)
    for call in (files.written, files.sync, lambda: files.step({"step": 3}), files.close):
        with pytest.raises(DiskStalled, match="got nothing done"):
            call()
    disk.answers.set()
