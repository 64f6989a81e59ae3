"""Resources that launchers keep besides machines: logs of ended servers, and things of a run."""

import asyncio
import logging
from dataclasses import replace

from rlboost_jax.providers.base import Exited
from rlboost_jax.providers.event_queue import EventQueue
from rlboost_jax.providers.launcher import Keeper, Launcher, LaunchFailed, LogKeeper

log = logging.getLogger(__name__)


class Ends:
    """Ends of instances, each reported once its last lines are here.

    They are fetched if the launcher keeps logs and the list had none.
    """

    def __init__(self, launcher: Launcher, events: EventQueue) -> None:
        self._launcher, self._events = launcher, events
        self._waiting: set[asyncio.Task[None]] = set()  # for their logs

    def say(self, end: Exited) -> None:
        if end.log or not isinstance(self._launcher, LogKeeper):
            self._events.put(end)
            return
        task = asyncio.create_task(self._with_log(self._launcher, end))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def all_said(self) -> None:
        if self._waiting:
            await asyncio.wait(self._waiting)

    async def _with_log(self, keeper: LogKeeper, end: Exited) -> None:
        try:
            lines = tuple(await keeper.log(end.name, end.nonce))
        except LaunchFailed as error:
            lines = (f"its log cannot be had: {error}",)
        reason = f"{end.reason}: {lines[-1]}" if lines else end.reason
        self._events.put(replace(end, reason=reason, log=lines))


async def discard_all(launcher: Launcher, run_id: str, seconds: float) -> None:
    """Remove what a launcher keeps for a run; a late start then starts nothing."""
    if not isinstance(launcher, Keeper):
        return
    try:
        async with asyncio.timeout(seconds):
            for kept in await launcher.kept():
                if kept.run == run_id:
                    await launcher.discard(kept)
    except (LaunchFailed, TimeoutError) as error:
        log.error("%s; rlboost fleet reap removes what is kept", error or "no answer")
