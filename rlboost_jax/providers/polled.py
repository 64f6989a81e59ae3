"""A provider made of a launcher: its events are the differences between two lists of jobs.

Invariants: of each nonce one job at most goes on, and each event of it is said once. A job of this
run that is not wanted (its request was refused or timed out, a second one of a nonce, one of an
earlier manager that came too late to be adopted) is stopped whenever a list has it. Nothing is
said to have ended because a list failed.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rlboost_jax.providers.base import (
    ANY_POOL,
    Exited,
    Granted,
    Listed,
    ProviderEvent,
    Refused,
    Started,
    Withdrawn,
)
from rlboost_jax.providers.event_queue import EventQueue
from rlboost_jax.providers.keepers import Ends, discard_all
from rlboost_jax.providers.launcher import Job, Launcher, LaunchFailed

AT_ONCE = 8  # starts that are under way at a time, and as many stops
LEAVE_SECONDS = 2.0  # from the signal to the end when the run is over
CLOSE_SECONDS = 120.0  # to see all of them ended: who does not answer by then is left to the reaper
FIRST_POLL_SECONDS = 0.1  # after something was begun or stopped; doubles, up to the usual pause

log = logging.getLogger(__name__)


@dataclass
class _Instance:
    nonce: str
    asked_at: float = math.inf  # when its start had returned; inf: it has not
    refused: bool = False  # said so: what appears of it is stopped
    granted: bool = False
    seen: bool = False  # a list had it
    ran: bool = False  # and running
    over: Job | None = None  # as a list had it that was over; later ones may have forgotten it
    withdrawn: str = ""  # why: said so
    end_at: float = math.inf  # its grace is over
    signalled: bool = False  # within its grace
    ended: bool = False  # asked to end at once, which goes on until no list has it
    jobs: Sequence[Job] = field(default_factory=tuple)  # of it, in the last list; living ones


class PolledProvider:
    """Provider that lists a launcher's jobs again and again.

    Args:
        run_id: jobs of others are left alone.
        poll_seconds: from one list to the next; while there are no instances there is none.
        settle_seconds: that a list may lag behind a start.
        close_seconds: that `close` waits for a launcher that does not answer.
        leave_seconds: that it gives servers to leave by themselves.
    """

    def __init__(
        self,
        launcher: Launcher,
        run_id: str,
        *,
        poll_seconds: float,
        settle_seconds: float,
        close_seconds: float = CLOSE_SECONDS,
        leave_seconds: float = LEAVE_SECONDS,
    ) -> None:
        self._launcher, self._run_id = launcher, run_id
        self._poll_seconds, self._settle_seconds = poll_seconds, settle_seconds
        self._close_seconds, self._leave_seconds = close_seconds, leave_seconds
        self._events = EventQueue()
        self._instances: dict[str, _Instance] = {}
        self._nonces: set[str] = set()
        self._starting = 0
        self._slots, self._stops = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self._one_list = asyncio.Lock()
        self._poked = asyncio.Event()
        self._quick = FIRST_POLL_SECONDS
        self._watcher: asyncio.Task[None] | None = None
        self._ends = Ends(launcher, self._events)
        self._adopted = self._closing = False
        self._problem = ""  # with the last list
        self._owns: Callable[[str], bool] = lambda name: True

    def keep_to(self, owns: Callable[[str], bool]) -> None:
        """Ignore jobs of the run that belong to another pool."""
        self._owns = owns

    def _is_own(self, job: Job) -> bool:
        return job.run == self._run_id and self._owns(job.name)

    async def request(self, name: str, nonce: str, pool: str) -> None:
        if nonce in self._nonces:
            return
        self._nonces.add(nonce)
        if self._closing:
            self._events.put(Refused(name, nonce, "the run is over"))
            return
        if pool != ANY_POOL and pool not in self._launcher.pools:
            known = ", ".join((ANY_POOL, *self._launcher.pools))
            self._events.put(Refused(name, nonce, f"there is no pool {pool!r}, only {known}"))
            return
        instance = self._instances[name] = _Instance(nonce)
        self._starting += 1
        try:
            async with self._slots:
                if instance.end_at < math.inf or self._closing:  # terminated before it was begun
                    raise LaunchFailed("terminated before it was started", sure=True)
                await self._launcher.start(name, nonce, pool)
        except LaunchFailed as error:
            instance.refused = True
            self._events.put(Refused(name, nonce, str(error)))
            if error.sure:
                del self._instances[name]
        finally:
            self._starting -= 1
            instance.asked_at = self._now()
            self._poke()

    async def terminate(self, name: str, grace_seconds: float) -> None:
        if (instance := self._instances.get(name)) is None:
            return
        instance.end_at = min(instance.end_at, self._now() + max(0.0, grace_seconds))
        await self._stop_due(instance)
        self._poke()

    async def list(self) -> tuple[Listed, ...]:
        while True:
            try:
                await self._look(adopt=not self._adopted)
                break
            except LaunchFailed:
                await asyncio.sleep(self._poll_seconds)
        if self._instances:
            self._poke()
        return tuple(
            Listed(name, each.nonce)
            for name, each in self._instances.items()
            if each.granted and not each.refused
        )

    def events(self) -> AsyncIterator[ProviderEvent]:
        return self._events.read()

    async def close(self) -> None:
        """End all jobs and wait for that.

        Gives up after `close_seconds`, and prints which command finds what may be left.
        """
        self._closing = True
        for instance in self._instances.values():
            instance.end_at = min(instance.end_at, self._now() + self._leave_seconds)
        self._poke()
        try:
            async with asyncio.timeout(self._close_seconds):
                while not await self._none_left():
                    await asyncio.sleep(self._quick)
        except TimeoutError:
            log.error(
                "cannot see that all servers have ended: %s; rlboost fleet reap ends what is left",
                self._problem or ", ".join(self._instances),
            )
        await discard_all(self._launcher, self._run_id, self._close_seconds)
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        await self._ends.all_said()
        self._events.close()

    async def _none_left(self) -> bool:
        """Whether a list shows no living job of this run."""
        if self._watcher is None and not self._nonces:
            return True  # nothing was ever begun or adopted
        with contextlib.suppress(LaunchFailed):
            return not (await self._look() or self._instances or self._starting)
        return False

    def _poke(self) -> None:
        """Request the next list soon."""
        self._quick = FIRST_POLL_SECONDS
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        self._poked.set()

    async def _watch(self) -> None:
        try:
            while True:
                await self._poked.wait()
                self._poked.clear()
                while self._instances:
                    with contextlib.suppress(LaunchFailed):
                        await self._look()
                    left = (each.end_at - self._now() for each in self._instances.values())
                    due = min((seconds for seconds in left if seconds > 0), default=math.inf)
                    pause = min(self._quick, self._poll_seconds, due)
                    self._quick = min(2 * self._quick, self._poll_seconds)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._poked.wait()
                    self._poked.clear()
        except Exception as error:  # a mistake: the manager's reader meets it
            self._events.fail(error)

    async def _look(self, *, adopt: bool = False) -> bool:
        """Compare a list with what is known; return whether any job of this run lives, or remains.

        Args:
            adopt: jobs that this provider did not start are its instances from now on.
        """
        async with self._one_list:
            began = self._now()
            try:
                found = [job for job in await self._launcher.list() if self._is_own(job)]
            except LaunchFailed as error:
                if str(error) != self._problem:
                    log.warning("servers cannot be listed: %s", error)
                self._problem = str(error)
                raise
            self._problem = ""
            if adopt:
                self._adopted = True
                self._adopt(found)
            living = [job for job in found if job.state != "over"]
            unwanted = [job for job in living if not self._wanted(job)]
            for name, instance in list(self._instances.items()):
                self._compare(name, instance, found, began)
            known = self._adopted or self._closing
            # Not one that a list older than its start has, which is still to be reported.
            remaining = [job for job in found if job.remains and not self._wanted(job)]
            unwanted += remaining
            strays = [job for job in unwanted if known or job.nonce in self._nonces]
            await asyncio.gather(
                *(self._stop(job, 0.0) for job in strays),
                *(self._stop_due(instance) for instance in self._instances.values()),
            )
            return bool(living or remaining)

    def _adopt(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.state == "over" or job.name in self._instances:
                continue
            self._nonces.add(job.nonce)
            self._instances[job.name] = _Instance(
                job.nonce, asked_at=-math.inf, granted=True, seen=True
            )

    def _wanted(self, job: Job) -> bool:
        """Whether a job belongs to an instance, or may belong to a start that has not returned."""
        instance = self._instances.get(job.name)
        return instance is not None and instance.nonce == job.nonce and not instance.refused

    def _compare(self, name: str, instance: _Instance, found: Sequence[Job], began: float) -> None:
        jobs = (job for job in found if job.name == name and job.nonce == instance.nonce)
        own = list({job.handle: job for job in jobs}.values())  # one that is listed twice is one
        instance.jobs = living = [job for job in own if job.state != "over"]
        runs = any(job.state == "running" for job in living)
        requeued = instance.ran and bool(living) and not runs  # its server is gone for good
        if own and not living:
            instance.over = own[-1]
        if living and not requeued:
            instance.seen, instance.ran = True, instance.ran or runs
            if runs:
                self._grant(name, instance)
            self._say_withdrawn(name, instance)
            return
        if not requeued and instance.asked_at >= began:  # the list may be older than its start
            return
        never = not (instance.seen or instance.over)
        if never and began < instance.asked_at + self._settle_seconds:
            return  # the list lags
        del self._instances[name]
        if instance.refused:
            return
        if requeued:
            self._events.put(Exited(name, instance.nonce, "it went back to the queue"))
            return
        last = instance.over
        if last is not None and last.refused and not instance.granted:
            self._events.put(Refused(name, instance.nonce, last.reason))
            return
        reason = last.reason if last is not None and last.reason else instance.withdrawn
        if last is not None and last.code is not None:
            reason = f"exit code {last.code}" + (f": {reason}" if reason else "")
        if instance.granted or last is not None:
            self._grant(name, instance)
            self._ends.say(
                Exited(
                    name,
                    instance.nonce,
                    reason or "it is not listed any more",
                    code=None if last is None else last.code,
                    log=() if last is None else last.log,
                )
            )
        else:
            known = "is not listed any more" if instance.seen else "a list never had it"
            self._events.put(Refused(name, instance.nonce, f"it was started, and {known}"))

    def _grant(self, name: str, instance: _Instance) -> None:
        if not (instance.granted or instance.refused):
            instance.granted = True
            self._events.put(Granted(name, instance.nonce))
            self._events.put(Started(name, instance.nonce))

    def _say_withdrawn(self, name: str, instance: _Instance) -> None:
        """Report a withdrawal once, if the instance is granted and was not terminated."""
        if instance.withdrawn or not instance.granted or instance.end_at < math.inf:
            return
        for job in instance.jobs:
            if job.withdrawn_in is not None:
                instance.withdrawn = job.reason or "its owner takes it back"
                seconds = job.withdrawn_in
                self._events.put(Withdrawn(name, instance.nonce, seconds, instance.withdrawn))
                return

    async def _stop_due(self, instance: _Instance) -> None:
        """Stop an instance's job if that is due, and all but one job of a nonce in any case."""
        now = self._now()
        running = sorted(instance.jobs, key=lambda job: job.state != "running")
        for job in running[1:]:
            await self._stop(job, 0.0)
        for job in running[:1]:
            if instance.end_at <= now:
                if not instance.ended:
                    instance.ended, self._quick = True, FIRST_POLL_SECONDS
                await self._stop(job, 0.0)
            elif instance.end_at < math.inf and not instance.signalled:
                instance.signalled = await self._stop(job, instance.end_at - now)

    async def _stop(self, job: Job, grace_seconds: float) -> bool:
        """Stop a job; returns whether that worked, else the next list tries again."""
        try:
            async with self._stops:
                await self._launcher.stop(job, grace_seconds)
        except LaunchFailed as error:
            log.warning("%s (%s) cannot be stopped: %s", job.name, job.handle, error)
            return False
        return True

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
