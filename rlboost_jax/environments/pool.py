"""Environments of many episodes at once, in processes that may be gone at any moment.

    live = await pool.open(example, seed, ledger)      # made and reset
    taken = await live.take(turn, key)                 # a turn, with its calls
    live.close()

What is lost with a process is `Lost`; the episode is made again elsewhere. All of it is called in
one event loop.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from rlboost_jax.environments import frames
from rlboost_jax.environments.chaos import kill_workers
from rlboost_jax.environments.forks import Forked, Forks
from rlboost_jax.environments.live import Live, Lost, WorkerHost
from rlboost_jax.environments.processes import START_SECONDS, EndedFromOutside, Line, Process
from rlboost_jax.environments.remote import JOIN, Listener, RemoteWorker
from rlboost_jax.environments.runner import CallLedger
from rlboost_jax.settings.environment import EnvironmentConfig
from rlboost_jax.settings.errors import ConfigError, Mistake
from rlboost_jax.supervision.restarts import (
    RESTARTS,
    Again,
    Cause,
    End,
    Restarts,
    StartsExhausted,
    Stop,
    after_end,
)

GRACE_SECONDS: Final = 20.0
WAIT_SECONDS: Final = 30.0  # for a host, before a line says that nobody has come


class EnvironmentWorkersLost(Mistake, RuntimeError):
    """Workers end as soon as they are started; the run cannot go on."""


class EnvironmentPool:
    """The processes of a run's environments. `start` comes first."""

    def __init__(
        self,
        settings: EnvironmentConfig,
        *,
        sandbox_required: bool = True,
        start_seconds: float = START_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        restarts: Restarts = RESTARTS,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """
        Args:
            grace_seconds: for a worker's answer, beside the time that a step may take.
            restarts: of a worker that somebody ends before it is ready.
            note: shows a line on the console.
        """
        self._note = note
        self._settings, self._start_seconds = settings, start_seconds
        self._answer_seconds = settings.time_limit_seconds + grace_seconds
        self._restarts = restarts
        self._setup = frames.Setup(
            name=settings.name,
            options=dict(settings.options),
            time_limit_seconds=settings.time_limit_seconds,
            memory_mb=settings.memory_mb,
            isolation=settings.isolation,
            sandbox_required=sandbox_required,
        )
        self._hosts: list[WorkerHost] = []
        self._forks: Forks | None = None  # of "episode"
        self._numbers = itertools.count()
        self._starting = asyncio.Lock()
        self._listener: Listener | None = None
        self._changed = asyncio.Condition()  # a host has come, or has less to do
        self._alone_wanted = 0  # episodes that wait for a host to themselves
        self._watching: set[asyncio.Task[None]] = set()
        self._closed = False
        self.processes_lost = 0

    @property
    def pids(self) -> list[int]:
        """Of the processes on this host that run episodes."""
        return [host.process.pid for host in self._hosts if host.process.pid]

    async def start(self) -> None:
        """The first worker, so that a mistake is reported before anything is asked.

        Raises:
            ConfigError, OSError, StartsExhausted
        """
        if not self._settings.workers:
            pass  # all of them are other hosts'
        elif self._settings.isolation == "episode":
            self._forks = Forks(await self._started())
        else:
            await self._add_shared()
        rate = self._settings.chaos_kills_per_minute
        self._watch(kill_workers(lambda: self.pids, per_minute=rate))

    async def open(self, ledger: CallLedger, *, alone: bool = False) -> Live:
        """An environment that is not reset yet.

        Args:
            ledger: of its calls.
            alone: in a process of its own.

        Raises:
            Lost: its process was gone at once.
            EnvironmentWorkersLost, StartsExhausted: none can be started.
        """
        try:
            host = await self._host(alone)
        except (ConfigError, OSError) as error:
            raise EnvironmentWorkersLost(
                f"an environment worker cannot be started again: {error}"
            ) from error
        number = next(self._numbers)
        live = host.episodes[number] = Live(host, number, ledger)
        if host.gone:
            raise Lost("the environment worker ended at once", "outside")
        return live

    async def close(self) -> None:
        """End all of them."""
        self._closed = True
        for task in self._watching:
            task.cancel()
        for host in list(self._hosts):
            host.end()
        if self._listener is not None:
            await self._listener.close()
        if self._forks is not None:
            await self._forks.close()

    def drop(self, host: WorkerHost) -> None:
        """It has ended."""
        if host in self._hosts:
            self._hosts.remove(host)
            if not self._closed and not (host.retired or host.alone):
                self.processes_lost += 1
        self._watch(host.process.ended())

    async def listen(self, folder: Path) -> None:
        """Let hosts of environments in, if `environment.listen` says where.

        Args:
            folder: of what opens it.

        Raises:
            ConfigError: nobody can listen there.
        """
        address = self._settings.listen
        if not address or self._listener is not None:
            return
        host, _, port = address.rpartition(":")
        setup = msgspec.structs.replace(self._setup, isolation="shared")
        self._listener = Listener(folder, setup, take=self._take, note=self._note)
        try:
            await self._listener.start(host.strip("[]"), int(port))
        except OSError as error:
            raise ConfigError(
                f"environment.listen is {address!r}: {error.strerror or error}; choose a port that "
                "is free, of an address of this host"
            ) from None
        self._note(
            f"environment hosts: rlboost environments --trainer={address} with {folder / JOIN}"
        )

    def _take(self, worker: RemoteWorker) -> None:
        """Another host's."""
        host = WorkerHost(worker, worker.connect, over=self.drop, changed=self._freed)
        self._add(host, alone=self._settings.isolation == "episode")
        self._freed()

    def _freed(self) -> None:
        """Somebody who waits for a host may have one now."""

        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._watch(notify())

    async def _host(self, alone: bool) -> WorkerHost:
        """That has room for one more episode."""
        while True:
            found = self._idle_remote() if alone or self._one_each else None
            if found is not None:
                found.alone = True
                return found
            if self._settings.workers:
                return await self._local(alone)
            if not (alone or self._one_each) and (found := self._idlest()) is not None:
                return found
            await self._wait(alone)

    async def _wait(self, alone: bool) -> None:
        """For a host that comes, or has less to do."""
        self._alone_wanted += alone
        try:
            async with self._changed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WAIT_SECONDS):
                        await self._changed.wait()
                        return
        finally:
            self._alone_wanted -= alone
        if not self._hosts:
            self._note(f"no environment host has come to {self._settings.listen} yet")

    async def _local(self, alone: bool) -> WorkerHost:
        if self._one_each:
            return await self._forked()
        if alone:
            return await self._add_shared(alone=True)
        async with self._starting:  # who comes meanwhile takes what is started here
            idlest, local = self._idlest(), [h for h in self._open_hosts if h.process.pid]
            if idlest is not None and (not idlest.episodes or len(local) >= self._settings.workers):
                return idlest
            return await self._add_shared()

    @property
    def _one_each(self) -> bool:
        """Whether no two episodes share a process."""
        return self._settings.isolation == "episode"

    @property
    def _open_hosts(self) -> list[WorkerHost]:
        """That more episodes may share."""
        return [host for host in self._hosts if not (host.retired or host.alone)]

    def _idlest(self) -> WorkerHost | None:
        """Idle ones stay so for an episode that wants one to itself."""
        hosts = [h for h in self._open_hosts if h.episodes or not self._alone_wanted]
        return min(hosts or self._open_hosts, key=lambda host: len(host.episodes), default=None)

    def _idle_remote(self) -> WorkerHost | None:
        return next(
            (h for h in self._hosts if not (h.process.pid or h.episodes or h.retired)), None
        )

    async def _add_shared(self, *, alone: bool = False) -> WorkerHost:
        process = await self._started()
        return self._add(self._here(process, process.end), alone)

    def _here(self, process: Process | Forked, end: socket.socket) -> WorkerHost:
        def connect(hear: Callable[[Any], None], over: Callable[[str, bool], None]) -> Line:
            return Line(end, hear=hear, over=over, how_it_ended=process.how_it_ended)

        return WorkerHost(process, connect, over=self.drop, changed=self._freed)

    async def _forked(self) -> WorkerHost:
        async with self._starting:
            for _ in range(2):  # it may have been ended meanwhile: then there is another
                if self._forks is None or not self._forks.lives:
                    self._forks = Forks(await self._started())
                try:
                    end, forked = await self._forks.fork()
                except OSError:
                    await self._forks.close()
                else:
                    return self._add(self._here(forked, end), alone=True)
        raise EnvironmentWorkersLost("the process that forks for episodes ends at once")

    def _add(self, host: WorkerHost, alone: bool) -> WorkerHost:
        host.alone = alone
        self._hosts.append(host)
        self._watch(host.watch(self._answer_seconds))
        return host

    async def _started(self) -> Process:
        """One that is ready; who is ended from outside while it begins has a successor.

        Raises:
            ConfigError, OSError, StartsExhausted
        """
        failed = 0
        while True:
            process = Process(self._setup)
            try:
                await process.prepare(self._start_seconds)
                return process
            except EndedFromOutside as error:
                process.end.close()
                end = End(cause=Cause.OUTSIDE, how=str(error))
            except BaseException:  # whatever it was, it goes on upwards
                process.kill()
                process.end.close()
                raise
            match after_end("an environment worker", failed, end, self._restarts):
                case Again(failed=failed, seconds=seconds):
                    await asyncio.sleep(seconds)
                case Stop(line=line):
                    raise StartsExhausted(line)

    def _watch(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
