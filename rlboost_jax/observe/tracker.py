"""Trackers of a run's numbers: its own files, the console, and others as configured.

The files are the run's record: one that cannot be written ends the run. All others are sent
`aside`: slow, broken or hanging, they cost the run nothing but what they would have shown.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlboost_jax.observe.metrics import metrics_row
from rlboost_jax.observe.samples import SampleRow
from rlboost_jax.observe.summary import Summary


class Tracker(Protocol):
    """Observer of a run, called step by step, always from the same thread.

    A step's samples come before its row. If a run died and repeats a step, what it had shown of
    that step is not to appear twice.
    """

    def samples(self, rows: Sequence[SampleRow]) -> None: ...

    def step(self, row: Mapping[str, Any]) -> None:
        """Take a finished step; `row` is its row of metrics, with all keys and JSON scalars."""

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Take the evaluation of the final parameters, after all steps; `row` is of no step."""

    def finish(self, summary: Summary) -> None:
        """Take the summary of a complete run; not called if it stops before."""

    def close(self) -> None: ...


class Trackers:
    """Several trackers as one. Each is called once per step, in the order given."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def samples(self, rows: Sequence[SampleRow]) -> None:
        for tracker in self._trackers:
            tracker.samples(rows)

    def step(self, row: Mapping[str, Any]) -> None:
        """Pass on a row as the loop makes it; raises as `metrics_row` does."""
        values = metrics_row(row)
        for tracker in self._trackers:
            tracker.step(values)

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Pass on the row of the final evaluation; raises as `step` does."""
        values = metrics_row(row)
        for tracker in self._trackers:
            tracker.evaluated(values)

    def finish(self, summary: Summary) -> None:
        for tracker in self._trackers:
            tracker.finish(summary)

    def close(self) -> None:
        """Close every tracker, also after one that raises; its exception is then raised."""
        with contextlib.ExitStack() as stack:
            for tracker in reversed(self._trackers):
                stack.callback(tracker.close)
