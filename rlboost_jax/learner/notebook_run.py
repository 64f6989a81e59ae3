"""Display of a run that is started in a notebook."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlboost_jax.learner.processes.process_group import ProcessGroup
from rlboost_jax.learner.setup.makers import Makers
from rlboost_jax.learner.training import run_training
from rlboost_jax.observe.notebook_console import (
    DisplayFunction,
    InterruptedCell,
    NotebookConsole,
    kernels_display,
    show_report,
)
from rlboost_jax.observe.summary import Summary
from rlboost_jax.settings.run_config import RunConfig


def run_shown(
    run: RunConfig,
    path: str | Path,
    world: ProcessGroup,
    *,
    fork: str = "",
    display: Callable[[], DisplayFunction | None] = kernels_display,
    training: Callable[..., Summary] = run_training,
) -> Summary:
    """Run `run_training`; in a notebook, with progress and report under the cell.

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
