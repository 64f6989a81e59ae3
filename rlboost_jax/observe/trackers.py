"""The trackers of `observe.trackers`. A library is imported where it was asked for only."""

from collections.abc import Callable, Mapping
from pathlib import Path

from rlboost_jax.config.records import RunConfig
from rlboost_jax.observe.aside import Aside
from rlboost_jax.observe.tracker import Tracker


def chosen_trackers(
    run: RunConfig,
    workdir: Path,
    run_id: str,
    *,
    step: int,
    note: Callable[[str], None],
) -> list[Tracker]:
    """Each in a thread of its own, where it can fail.

    Args:
        run_id: of the workdir: the same run goes on wherever it was told of before.
        step: the first step to come.
        note: shows a person a line.
    """

    def tensorboard() -> Tracker:
        from rlboost_jax.observe.tensorboard import TensorBoardTracker

        return TensorBoardTracker(workdir, step=step)

    def wandb() -> Tracker:
        from rlboost_jax.observe.wandb import WandbTracker

        return WandbTracker(run, workdir, run_id, note=note)

    makers: Mapping[str, Callable[[], Tracker]] = {"tensorboard": tensorboard, "wandb": wandb}
    return [Aside(name, makers[name], note=note) for name in run.observe.trackers]
