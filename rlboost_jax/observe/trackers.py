"""The trackers of `observe.trackers`. Their libraries are imported only if configured.

That happens in the caller's thread: to import in one thread what makes syntax trees while JAX
traces in another fails at times in Python 3.11.
"""

from collections.abc import Callable
from pathlib import Path

from rlboost_jax.observe.isolated_tracker import IsolatedTracker
from rlboost_jax.observe.tracker import Tracker
from rlboost_jax.settings.run_config import RunConfig


def chosen_trackers(
    run: RunConfig,
    workdir: Path,
    run_id: str,
    *,
    step: int,
    note: Callable[[str], None],
) -> list[Tracker]:
    """Open the configured trackers, each isolated in a thread of its own.

    Args:
        run_id: of the workdir: the same run goes on wherever it was logged before.
        step: the first step to come.
        note: shows a person a line.
    """

    makers = {
        "tensorboard": lambda: _tensorboard(workdir, step),
        "wandb": lambda: _wandb(run, workdir, run_id, note),
        "mlflow": lambda: _mlflow(run, workdir, run_id, note),
    }
    trackers: list[Tracker] = []
    for name in run.observe.trackers:
        try:
            trackers.append(IsolatedTracker(name, makers[name](), note=note))
        except Exception as error:  # a broken installation, in whatever way
            note(f"{name} is left out, the run goes on: {type(error).__name__}: {error}")
    return trackers


def _tensorboard(workdir: Path, step: int) -> Callable[[], Tracker]:
    from rlboost_jax.observe.tensorboard import TensorBoardTracker

    return lambda: TensorBoardTracker(workdir, step=step)


def _wandb(
    run: RunConfig, workdir: Path, run_id: str, note: Callable[[str], None]
) -> Callable[[], Tracker]:
    from rlboost_jax.observe.wandb import WandbTracker

    return lambda: WandbTracker(run, workdir, run_id, note=note)


def _mlflow(
    run: RunConfig, workdir: Path, run_id: str, note: Callable[[str], None]
) -> Callable[[], Tracker]:
    from rlboost_jax.observe.mlflow import MlflowTracker, open_client

    client, artifacts = open_client(run, workdir)  # imports more, and makes tables in a new file
    return lambda: MlflowTracker(client, run, workdir, run_id, artifacts=artifacts, note=note)
