"""Spans of all processes as lines of `<workdir>/profile/step_N.jsonl`.

A line is a span with its process, or what is doubtful of a process's spans as a whole; the trainer
makes a trace of them (`observe/profile.py`). The file is of use to that alone: where it cannot be
written, the run goes on without it.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final

import msgspec

from rlboost_jax.messages import Span
from rlboost_jax.observe.chrome_trace import Doubtful, spans_path

MAX_LINES: Final = 200_000  # some 30 MB; what comes beyond is counted only
LINES_AT_ONCE: Final = 512

log = logging.getLogger(__name__)


class SpanFile:
    """Writer of spans: some hundred lines at a time, and at each `flush`.

    Args:
        max_lines: of spans, each time that the step begins.
    """

    def __init__(self, workdir: Path, step: int, max_lines: int = MAX_LINES) -> None:
        self._path, self._step = spans_path(workdir, step), step
        self._max_lines = max_lines
        self.begin()

    def begin(self) -> None:
        """Start the file of the step.

        If the step begins again, unwritten lines are of the time before and are dropped, as its
        file was, which the trainer has removed.
        """
        self._left = self._max_lines
        self._lines: list[str] = []
        self._doubts: dict[str, Doubtful] = {}  # of each process, since they were last written

    def add(self, process: str, spans: Iterable[Span]) -> None:
        for span in spans:
            if not self.full:
                self._left -= 1
                self._lines.append(_line(process, msgspec.structs.asdict(span)))
            else:
                self.doubt(process, Doubtful(dropped=1))
        if len(self._lines) >= LINES_AT_ONCE:
            self._write()

    def doubt(self, process: str, doubtful: Doubtful) -> None:
        self._doubts[process] = self._doubts.get(process, Doubtful()).and_also(doubtful)

    @property
    def full(self) -> bool:
        return self._left <= 0

    def flush(self) -> None:
        self._left -= len(self._doubts)
        self._lines += [_line(process, asdict(doubt)) for process, doubt in self._doubts.items()]
        self._doubts = {}
        self._write()

    def _write(self) -> None:
        """Append to the file, opened anew each time because it may have been removed."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            if not self.full:
                log.error("step %d is not profiled any further: %s", self._step, error)
            self._left = 0


def _line(process: str, values: dict[str, object]) -> str:
    return json.dumps({"process": process, **values}) + "\n"
