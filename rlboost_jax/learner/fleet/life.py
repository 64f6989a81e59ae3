"""What is done about the fleet for as long as a session lasts: show it, and send it home."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from rlboost_jax.learner.fleet.link import EventLoopThread, ManagerLink
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.observe.console import Console

LOOK_SECONDS: Final = 0.25  # between two looks at the fleet, for the live view


@contextlib.contextmanager
def sending_home(link: ManagerLink, manager: ManagerProcess) -> Iterator[None]:
    """However the run ends, manager and servers do not stay behind.

    Of one that is not complete they leave the tokens so far in the manager's journal.
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
def showing_fleet(thread: EventLoopThread, link: ManagerLink, console: Console) -> Iterator[None]:
    """Show the fleet as the manager last described it, whatever the trainer waits for."""

    async def show() -> None:
        while True:
            if link.status is not None:
                console.fleet(link.status)
            await asyncio.sleep(LOOK_SECONDS)

    showing = thread.start(show())
    try:
        yield
    finally:
        showing.cancel()
