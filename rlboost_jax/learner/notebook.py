"""A run that is started in a notebook shows itself there."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlboost_jax.learner.processes.world import World
from rlboost_jax.learner.setup.makers import Makers
from rlboost_jax.learner.training import run_training
from rlboost_jax.observe.notebook import (
    InterruptedCell,
    NotebookConsole,
    Output,
    kernels_display,
    show_report,
)
from rlboost_jax.observe.summary import Summary
from rlboost_jax.settings.run import RunConfig


def run_shown(
    run: RunConfig,
    path: str | Path,
    world: World,
    *,
    fork: str = "",
    display: Callable[[], Output | None] = kernels_display,
    training: Callable[..., Summary] = run_training,
) -> Summary:
    """As `run_training`, and in a notebook with progress and report under the cell.

    Args:
        fork: as `run_training`'s.
        display, training: a test gives others.

    Raises:
        InterruptedCell: the notebook's kernel was interrupted; all that was started has ended.
    """
    output = display()
    if output is None:
        return training(run, path, world, fork=fork)
    makers = Makers(console=partial(NotebookConsole, output=output))
    try:
        summary = training(run, path, world, fork=fork, makers=makers)
    except KeyboardInterrupt:
        raise InterruptedCell from None
    show_report(path, output)
    return summary
