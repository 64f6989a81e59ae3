"""State of a run as its files have it, followed as they grow; for the page, `/metrics` and alerts.

Only the work directory is read: trainer, manager and servers do not notice. Memory is
bounded, so that a day of events takes as much as an hour.
"""

import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlboost_jax.observe import events_file, metrics, samples
from rlboost_jax.observe.diagnostics import Diagnostics
from rlboost_jax.observe.history import WARMUP
from rlboost_jax.observe.json_lines import decoded
from rlboost_jax.observe.page.file_tail import FileTail
from rlboost_jax.observe.page.points import Points
from rlboost_jax.observe.page.sample_index import SampleIndex
from rlboost_jax.observe.timeline import Course, Life
from rlboost_jax.platform.closing import Closing
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.run_config import RunConfig

MOST_POINTS: Final = 2_000
MOST_LIVES: Final = 3_000
MOST_NEWS: Final = 200
EMPTY: Final[Mapping[str, Any]] = {"instance": "", "kind": "", "detail": "", "step": -1}
LONGEST_SILENCE: Final = 3600.0  # seconds of it that are drawn
LOOKS: Final = 16  # of one poll, at files that are long already

# Events of the fleet and the run; the others are numbers of steps, and many.
NEWS: Final = frozenset(
    ("joined", "ready", "notice", "lost", "drained", "rejected", "quarantined", "resumed")
) | {"manager", "ended", "journal", "file_server", "page", "ordered", "budget"}


class RunView(Closing):
    """Context manager; `poll` reads what is new. To be used by one thread at a time.

    Attributes:
        config: None while there is none that can be read.
        course: of the fleet; None before the first event.
        generation: changes when the rows are other ones than before.
        last: the newest row of a step, whole, with the accuracy of the final evaluation once there
            is one.
        sums: of the columns of `SUMMED`, over all rows.
        news: (number, event), the newest.
        kinds: how many events there were of each kind.
        supervised: how many supervised updates on rows there were, and the first and the newest
            loss, nats per token; empty where there were none.
    """

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.config: RunConfig | None = None
        self._rows = FileTail(workdir / metrics.FILE)
        self._events = FileTail(workdir / events_file.FILE)
        self._supervised = FileTail(workdir / WARMUP)
        self.supervised: list[float] = []
        self.samples = SampleIndex(workdir / samples.FILE)
        self._began_with = 0
        self._forget_rows()
        self._forget_events()
        self.generation = 0

    def close(self) -> None:
        for tail in (self._rows, self._events, self._supervised):
            tail.close()

    def poll(self) -> bool:
        """Read what is new; return whether there was anything."""
        if self.config is None:
            self._read_config()
        changed = self._poll_supervised()
        for _ in range(LOOKS):
            changed |= self._poll_rows() | self._poll_events()
            if not (self._rows.behind or self._events.behind):
                break
        return changed

    def lives(self) -> tuple[Life, ...]:
        """The fleet's newest instances, in order of arrival."""
        return self.course.lives()[-MOST_LIVES:] if self.course else ()

    def now(self) -> float:
        """Seconds since the first event; stops when the run is over, or silent for long."""
        if self.course is None:
            return 0.0
        if self.course.ended:
            return self.course.now
        try:
            silent = time.time() - (self.workdir / events_file.FILE).stat().st_mtime
        except OSError:
            silent = 0.0
        return self.course.now + min(max(0.0, silent), LONGEST_SILENCE)

    def _read_config(self) -> None:
        try:
            self.config = read_run_config(self.workdir / "config.json")
        except (OSError, ValueError, RuntimeError):  # not there yet
            return
        self._rows.close()
        self._rows = FileTail(self.workdir / metrics.FILE)
        self._forget_rows()

    def _forget_rows(self) -> None:
        self.points = Points(MOST_POINTS)
        self.sums: Counter[str] = Counter()
        self.last: Mapping[str, Any] = {}
        self.warnings: list[str] = []
        self._diagnostics = Diagnostics(self.config) if self.config is not None else None

    def _forget_events(self) -> None:
        self.course: Course | None = None
        self.news: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=MOST_NEWS)
        self.kinds: Counter[str] = Counter()
        self.num_events = 0

    def _poll_rows(self) -> bool:
        replaced = self._rows.replaced
        lines = self._rows.lines()
        if self._rows.replaced != replaced:
            self._forget_rows()
            self.generation += 1
        for _, line in lines:
            if (row := decoded(line)) is not None and isinstance(row.get("step"), int):
                self._take_row(row)
        return bool(lines) or self._rows.replaced != replaced

    def _take_row(self, row: Mapping[str, Any]) -> None:
        thinned = self.points.thinned
        self.points.add(row)
        self.generation += self.points.thinned - thinned
        final = bool(row.get("final"))
        self.last = {**self.last, "accuracy": row.get("accuracy")} if final else row
        for key in metrics.SUMMED:
            value = row.get(key)
            if isinstance(value, int | float):
                self.sums[key] += value  # type: ignore[assignment]  # of dollars, too
        if self._diagnostics is not None and not final:
            self.warnings += self._diagnostics.after(row)

    def _poll_supervised(self) -> bool:
        replaced = self._supervised.replaced
        lines = self._supervised.lines()
        if self._supervised.replaced != replaced:
            self.supervised = []
        for _, line in lines:
            loss = (decoded(line) or {}).get("loss")
            if isinstance(loss, int | float):
                count, first, _ = self.supervised or (0, loss, loss)
                self.supervised = [count + 1, first, loss]
        return bool(lines)

    def _poll_events(self) -> bool:
        replaced = self._events.replaced
        lines = self._events.lines()
        if self._events.replaced != replaced:
            self._forget_events()
            self.generation += 1
        for _, line in lines:
            event = decoded(line)
            if event is None or not isinstance(event.get("time"), int | float):
                continue
            event = {**EMPTY, **event}
            self.course = self.course or Course(event["time"])
            self.course.take(event)
            self.kinds[str(event["kind"])] += 1
            if event["kind"] in NEWS:
                self.num_events += 1
                self.news.append((self.num_events, event))
        return bool(lines) or self._events.replaced != replaced
