"""The run's own record of its steps: `metrics.jsonl` and `samples.jsonl`, as a tracker."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlboost_jax.closing import Closing
from rlboost_jax.observe import metrics, samples
from rlboost_jax.observe.lines import StepLines
from rlboost_jax.observe.samples import SampleRow, sample_values
from rlboost_jax.observe.summary import Summary


class FilesTracker(Closing):
    """Each row is written when the call returns; an error of the disk ends the run.

    Args:
        step: the first step to come; what a run that died has left from there on is taken out.
    """

    def __init__(self, workdir: str | Path, *, step: int = 0) -> None:
        self._metrics = StepLines(Path(workdir) / metrics.FILE, step=step)
        self._samples = StepLines(Path(workdir) / samples.FILE, step=step)

    def samples(self, rows: Sequence[SampleRow]) -> None:
        self._samples.write(map(sample_values, rows))

    def step(self, row: Mapping[str, Any]) -> None:
        self._metrics.write([row])

    def finish(self, summary: Summary) -> None:
        """`summary.json` and the report are made by the trainer, also of a run that stopped."""

    def sync(self) -> None:
        """Have the rows so far last, before a checkpoint that they lie before is said to. May be
        called from any thread."""
        self._metrics.sync()
        self._samples.sync()

    def close(self) -> None:
        self._metrics.close()
        self._samples.close()
