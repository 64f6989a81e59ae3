"""Whether a run is complete, according to its files alone."""

from pathlib import Path

from rlboost_jax.learner.checkpoints.folders import steps_in
from rlboost_jax.learner.workdir import is_held
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.summary import Summary, read_summary
from rlboost_jax.settings.changes import foreign
from rlboost_jax.settings.config_loading import read_origin, read_run_config
from rlboost_jax.settings.run_config import RunConfig


def complete(run: RunConfig, path: Path) -> Summary | None:
    """Summary of a folder in which every step of `run` is done; else None.

    None means that steps are left, that another process works there, or that it is another run's.
    """
    if not (path / "config.json").exists() or (summary := read_summary(path)) is None:
        return None
    before = read_run_config(path)
    if foreign(before, run) or is_held(path):
        return None
    rows, origin = read_metrics(path), read_origin(path)
    done = summary.steps == len(rows) == run.num_steps - (origin.step if origin else 0)
    kept = run.num_steps in steps_in(path / "checkpoints")  # to go on from, with more steps
    return summary if done and kept else None
