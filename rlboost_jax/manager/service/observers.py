"""Observers of a manager: they see all its events and change nothing."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rlboost_jax.manager.events import Action, Event
from rlboost_jax.manager.service.manager_driver import Watch
from rlboost_jax.manager.service.server_logs import RemoveOld, ServerLogs
from rlboost_jax.manager.service.tracing import StepTracer


def watches_of(stack: ExitStack, workdir: Path, *, step: int, remove_old: RemoveOld) -> Watch:
    """Open the observers of a run; the stack closes them.

    Args:
        step: that is profiled; 0: none.
        remove_old: see `ServerLogs`.
    """
    said = ServerLogs(workdir, remove_old)
    stack.callback(said.close)
    if not step:
        return said
    tracer = StepTracer(workdir, step)
    stack.callback(tracer.close)
    return all_of(said, tracer)


def all_of(*watches: Watch) -> Watch:
    """An observer that passes everything on to several."""

    def watch(event: Event, actions: Sequence[Action], began: float, ended: float) -> None:
        for each in watches:
            each(event, actions, began, ended)

    return watch
