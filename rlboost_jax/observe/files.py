"""The run's own record of its steps: `metrics.jsonl` and `samples.jsonl`, as a tracker."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlboost_jax.observe.metrics import MetricsWriter
from rlboost_jax.observe.samples import SampleRow, SamplesWriter
from rlboost_jax.observe.summary import Summary


class FilesTracker:
    """Each row is on disk when the call returns; an error of the disk ends the run.

    Args:
        step: the first step to come; what a run that died has left from there on is taken out.
    """

    def __init__(self, workdir: str | Path, *, step: int = 0) -> None:
        self._metrics = MetricsWriter(workdir, step=step)
        self._samples = SamplesWriter(workdir, step=step)

    def samples(self, rows: Sequence[SampleRow]) -> None:
        self._samples.write(rows)

    def step(self, row: Mapping[str, Any]) -> None:
        self._metrics.write(row)

    def finish(self, summary: Summary) -> None:
        """`summary.json` and the report are made by the trainer, also of a run that stopped."""

    def close(self) -> None:
        self._metrics.close()
        self._samples.close()
