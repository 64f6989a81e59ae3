"""Whether a run is complete, found out from its files alone."""

from pathlib import Path

from rlboost_jax.learner.checkpoints.folders import steps_in
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.summary import Summary, read_summary
from rlboost_jax.settings.changes import foreign
from rlboost_jax.settings.load import read_origin, read_run_config
from rlboost_jax.settings.run import RunConfig
from rlboost_jax.storage.workdir import is_held


def complete(run: RunConfig, path: Path) -> Summary | None:
    """The summary of a folder in which every step of `run` is done; None: there is work left, or
    somebody is at work, or it is another run's."""
    if not (path / "config.json").exists() or (summary := read_summary(path)) is None:
        return None
    before = read_run_config(path)
    if foreign(before, run) or is_held(path):
        return None
    rows, origin = read_metrics(path), read_origin(path)
    done = summary.steps == len(rows) == run.num_steps - (origin.step if origin else 0)
    kept = run.num_steps in steps_in(path / "checkpoints")  # to go on from, with more steps
    return summary if done and kept else None
