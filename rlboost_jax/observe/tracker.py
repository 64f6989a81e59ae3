"""Where the numbers of a run go: its own files, the console, and whatever else was asked for.

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
    """Is shown a run step by step, always from the same thread.

    Of a step the samples come first, where there are any. What a run that died had shown of
    a step before it is done again is not to be there twice.
    """

    def samples(self, rows: Sequence[SampleRow]) -> None: ...

    def step(self, row: Mapping[str, Any]) -> None:
        """A step is done; `row` is its row of metrics, with all keys and JSON's own scalars."""

    def finish(self, summary: Summary) -> None:
        """The run is complete; not called where it stops before."""

    def close(self) -> None: ...


class Trackers:
    """Several trackers as one. Of each step every one hears once, in the order given."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def samples(self, rows: Sequence[SampleRow]) -> None:
        for tracker in self._trackers:
            tracker.samples(rows)

    def step(self, row: Mapping[str, Any]) -> None:
        """Takes a row as the loop makes it; raises as `metrics_row` does."""
        values = metrics_row(row)
        for tracker in self._trackers:
            tracker.step(values)

    def finish(self, summary: Summary) -> None:
        for tracker in self._trackers:
            tracker.finish(summary)

    def close(self) -> None:
        """Close every one, also after one that raises; that goes on upwards."""
        with contextlib.ExitStack() as stack:
            for tracker in reversed(self._trackers):
                stack.callback(tracker.close)
