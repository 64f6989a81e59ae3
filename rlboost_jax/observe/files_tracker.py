"""The run's own record of its steps: `metrics.jsonl` and `samples.jsonl`, as a tracker."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlboost_jax.observe import metrics, samples
from rlboost_jax.observe.json_lines import StepLines
from rlboost_jax.observe.samples import SampleRow, sample_values
from rlboost_jax.observe.summary import Summary
from rlboost_jax.platform.closing import Closing
from rlboost_jax.platform.disk_thread import STALL_SECONDS, DiskThread, ThreadClosed

MOST_WAITING: Final = 1_000  # calls; then the next one waits for the disk


class FilesTracker(Closing):
    """Rows are written in a thread, in order and without a gap: a disk that is slow or does not
    answer for a while holds up no step. An error of it ends the run, at one of the next calls; so
    does a disk that does not answer for `disk_seconds` (`DiskStalled`).

    What has to be there before a checkpoint counts waits for `written`; other threads may call
    that and `sync`.

    Args:
        step: the first step to come; what a run that died has left from there on is taken out.
        most_waiting: calls that may wait for the disk.
        disk_seconds: how long the disk may not answer.
        lines: makes what a file is written with.
    """

    def __init__(
        self,
        workdir: str | Path,
        *,
        step: int = 0,
        most_waiting: int = MOST_WAITING,
        disk_seconds: float = STALL_SECONDS,
        lines: Callable[..., StepLines] = StepLines,
    ) -> None:
        self._folder = Path(workdir)
        self._metrics = lines(Path(workdir) / metrics.FILE, step=step)
        self._samples = lines(Path(workdir) / samples.FILE, step=step)
        self._room = threading.BoundedSemaphore(most_waiting)
        self._error: Exception | None = None  # after it nothing is written any more
        self._thread = DiskThread("rows", stall_seconds=disk_seconds)

    def samples(self, rows: Sequence[SampleRow]) -> None:
        self._put(self._samples, rows, sample_values)

    def step(self, row: Mapping[str, Any]) -> None:
        self._put(self._metrics, [row], dict)

    def evaluated(self, row: Mapping[str, Any]) -> None:
        self._put(self._metrics, [row], dict)

    def finish(self, summary: Summary) -> None:
        """Do nothing: the trainer makes `summary.json` and the report, also of a stopped run."""

    def written(self) -> None:
        """Return once all rows so far are written.

        Raises:
            OSError, DiskStalled: they cannot be.
        """
        with contextlib.suppress(ThreadClosed):  # all is written
            self._thread.submit(lambda: None, "rows", self._folder).result()
        self._check()

    def sync(self) -> None:
        """Make the rows so far durable, before a checkpoint after them is reported durable."""
        self.written()
        self._metrics.sync()
        self._samples.sync()

    def close(self) -> None:
        self._thread.close()
        if self._thread.stalled is None:  # closing a file waits for the disk, too
            self._metrics.close()
            self._samples.close()
        self._check()

    def _put(
        self,
        lines: StepLines,
        rows: Iterable[Any],
        values: Callable[[Any], Mapping[str, Any]],
    ) -> None:
        self._check()
        self._room.acquire()
        written = self._thread.submit(
            lambda: self._write(lines, rows, values), "rows of metrics and samples", self._folder
        )
        written.add_done_callback(lambda end: self._room.release())

    def _write(
        self,
        lines: StepLines,
        rows: Iterable[Any],
        values: Callable[[Any], Mapping[str, Any]],
    ) -> None:
        try:
            if self._error is None:
                lines.write(map(values, rows))
        except Exception as error:  # raised in the thread of the run
            self._error = error

    def _check(self) -> None:
        error = self._error or self._thread.stalled
        if error is not None:
            raise error
