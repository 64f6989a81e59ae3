"""Display of the fleet while a session lasts, and its end afterwards."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlboost_jax.learner.fleet.link import EventLoopThread, ManagerLink
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.learner.fleet.slow_starts import SlowStarts
from rlboost_jax.observe.console import Console

LOOK_SECONDS: Final = 0.25  # between two looks at the fleet, for the live view


@contextlib.contextmanager
def sending_home(link: ManagerLink, manager: ManagerProcess) -> Iterator[None]:
    """Make manager and servers leave however the run ends.

    If the run is not complete, the tokens so far stay in the manager's journal.
    """
    reason, over = "the trainer stopped", False
    try:
        yield
        reason, over = "the run is over", True
    except BaseException as error:
        reason = f"the trainer stopped: {type(error).__name__}"
        raise
    finally:
        if not link.end(reason, over=over):
            manager.dismiss()


@contextlib.contextmanager
def showing_fleet(
    thread: EventLoopThread, link: ManagerLink, console: Console, workdir: Path
) -> Iterator[None]:
    """Show the fleet as the manager last described it, whatever the trainer waits for."""
    starts = SlowStarts(workdir / "logs")

    async def show() -> None:
        while True:
            if (status := link.status) is not None:
                console.fleet(status)
                if line := await asyncio.to_thread(starts.look, status.starting):
                    console.note(line)
            await asyncio.sleep(LOOK_SECONDS)

    showing = thread.start(show())
    try:
        yield
    finally:
        showing.cancel()
