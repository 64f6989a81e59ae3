"""Pool of workers: processes that run somebody's function and may vanish at any moment.

    session = await pool.open()                     # in a worker that has room for it
    answer = await session.ask(request, Answer)     # raises Lost where the worker vanishes
    session.close()

A worker is started, imports what its kind names and is ready, takes sessions, and ends with the
pool. One that somebody ends before it is ready has a successor after a pause that doubles; one
that cannot use what it imports does not, and neither does one that vanishes later: the next
session starts another. Workers of other hosts join by themselves. Who is to blame for a lost
session: `worker_sessions.py`; how often its work is done again: `attempt`.

All of it is called in one event loop.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.restarts import RESTARTS, Restarts
from rlboost_jax.workers.episode_forks import Forked
from rlboost_jax.workers.local_workers import LocalWorkers, WorkersLost
from rlboost_jax.workers.remote_workers import JOIN, RemoteWorker, WorkerListener
from rlboost_jax.workers.worker_chaos import kill_workers
from rlboost_jax.workers.worker_kind import WorkerKind
from rlboost_jax.workers.worker_process import START_SECONDS, WorkerConnection, WorkerProcess
from rlboost_jax.workers.worker_sessions import Lost, PooledWorker, WorkerSession

WAIT_SECONDS: Final = 30.0  # for a host, before a line says that nobody has come
Result = TypeVar("Result")


class WorkerPool:
    """Workers of one kind. `start` comes first."""

    def __init__(
        self,
        kind: WorkerKind,
        *,
        chaos_kills_per_minute: float = 0.0,
        start_seconds: float = START_SECONDS,
        restarts: Restarts = RESTARTS,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """
        Args:
            chaos_kills_per_minute: rate at which this kills workers of its own.
            start_seconds: within which a worker imports what it runs.
            restarts: of a worker that somebody ends before it is ready, and of one piece of work
                whose workers somebody ends.
            note: shows a line on the console.
        """
        self._kind, self._chaos = kind, chaos_kills_per_minute
        self._local = LocalWorkers(kind, start_seconds=start_seconds, restarts=restarts)
        self._note = note
        self._workers: list[PooledWorker] = []
        self._numbers = itertools.count()
        self._starting = 0  # processes that are to be shared
        self._listener: WorkerListener | None = None
        self._changed = asyncio.Condition()  # a worker has come, or has less to do
        self._alone_wanted = 0  # sessions that wait for a worker to themselves
        self._watching: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()  # processes that were asked to end
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers on this host."""
        return [worker.process.pid for worker in self._workers if worker.process.pid]

    async def start(self) -> None:
        """Start the first worker, so that a mistake is reported before anything is asked.

        Raises:
            ConfigError, OSError, StartsExhausted, WorkersLost
        """
        if not self._kind.workers:
            pass  # all of them are other hosts'
        elif self._kind.one_each:
            await self._local.prepare_to_fork()
        else:
            await self._add_shared()
        self._watch(kill_workers(lambda: self.pids, per_minute=self._chaos))

    async def open(
        self,
        hear: Callable[[WorkerSession, Any], None] | None = None,
        *,
        alone: bool = False,
    ) -> WorkerSession:
        """Begin a session in a worker that has room for it, as soon as there is one.

        Args:
            hear: see `WorkerSession`.
            alone: in a process of its own.

        Raises:
            Lost: the worker was gone at once.
            WorkersLost, StartsExhausted: none can be started.
        """
        try:
            worker = await self._with_room(alone)
        except (ConfigError, OSError) as error:
            raise WorkersLost(f"{self._kind.a_worker} cannot be started again: {error}") from error
        number = next(self._numbers)
        session = worker.sessions[number] = WorkerSession(worker, number, hear)
        if worker.gone:
            raise Lost(f"the {self._kind.what} ended at once", "outside")
        return session

    async def attempt(
        self, work: Callable[[WorkerSession], Awaitable[Result]], *, attempts: int
    ) -> Result:
        """Do work in a session, and again in another one where it is lost.

        After a loss that may be its own fault it has a worker to itself. A worker that somebody
        ended is no failure of the work, but `restarts` limits how often that happens in a row.

        Args:
            attempts: failures that may be its own, after which it is abandoned.

        Raises:
            Lost: the last one.
            WorkersLost, StartsExhausted: no worker can be started, or each is ended.
        """
        failures = ended = 0
        while True:
            session = None
            try:
                session = await self.open(alone=failures > 0)
                return await work(session)
            except Lost as lost:
                failures += lost.blame != "outside"
                if lost.for_good or failures >= attempts:
                    raise
                if lost.blame == "outside":
                    how = str(lost).removeprefix(f"the {self._kind.what} ")
                    ended = await self._local.pause(ended, how)
            finally:
                if session is not None:
                    session.close()

    async def close(self) -> None:
        """End all workers: each is asked to end before any is waited for."""
        self._closed = True
        for task in self._watching:
            task.cancel()
        self._local.stop()
        for worker in list(self._workers):
            worker.end_lost("it was closed")
        if self._listener is not None:
            await self._listener.close()
        await self._local.close()
        await asyncio.gather(*self._ending)
        self._free()

    async def listen(self, address: str, folder: Path) -> None:
        """Accept workers of other hosts.

        Args:
            address: HOST:PORT.
            folder: of what opens it.

        Raises:
            ConfigError: nobody can listen there.
        """
        remote = self._kind.remote
        if remote is None or self._listener is not None:
            return
        host, _, port = address.rpartition(":")
        self._listener = WorkerListener(
            folder, self._kind, remote, take=self._admit, note=self._note
        )
        try:
            await self._listener.start(host.strip("[]"), int(port))
        except OSError as error:
            raise ConfigError(
                f"{remote.setting} is {address!r}: {error.strerror or error}; choose a port that "
                "is free, of an address of this host"
            ) from None
        self._note(f"{remote.host}s: {remote.command} --trainer={address} with {folder / JOIN}")

    def _admit(self, worker: RemoteWorker) -> None:
        """Add a worker of another host."""
        self._add(
            PooledWorker(self._kind, worker, worker.connect, over=self._drop, changed=self._free),
            alone=self._kind.one_each,
        )
        self._free()

    def _drop(self, worker: PooledWorker) -> None:
        """Forget a worker that has ended."""
        if worker in self._workers:
            self._workers.remove(worker)
        self._watch(worker.process.ended(), self._ending)
        if not self._closed:
            self._free()

    def _free(self) -> None:
        """Wake the sessions that wait for a worker."""

        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._watch(notify())

    async def _with_room(self, alone: bool) -> PooledWorker:
        """Wait for a worker that has room for one more session."""
        alone = alone or self._kind.one_each
        while not self._closed:
            found = self._idle_remote() if alone else self._idlest()
            if found is not None:
                found.alone = alone
                return found
            if alone and self._kind.workers:
                return await (self._forked() if self._kind.one_each else self._add_alone())
            if not alone and self._may_start:
                return await self._add_shared()
            await self._wait(alone)
        raise self._local.closed()

    async def _wait(self, alone: bool) -> None:
        """Wait for a worker that joins, or has less to do."""
        self._alone_wanted += alone
        try:
            async with self._changed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WAIT_SECONDS):
                        await self._changed.wait()
                        return
        finally:
            self._alone_wanted -= alone
        if self._kind.remote is not None and not self._workers:
            self._note(f"no {self._kind.remote.host} has come yet ({self._kind.remote.setting})")

    @property
    def _may_start(self) -> bool:
        """Whether one more process of this host may be shared."""
        local = sum(bool(worker.process.pid) for worker in self._shared)
        return local + self._starting < self._kind.workers

    @property
    def _shared(self) -> list[PooledWorker]:
        """Workers that more sessions may share."""
        return [worker for worker in self._workers if not (worker.retired or worker.alone)]

    def _idlest(self) -> PooledWorker | None:
        """The least loaded worker; None if it is full, or an idle one can soon be had instead.

        Idle ones are left for a session that wants one to itself.
        """
        shared = self._shared
        workers = [each for each in shared if each.sessions or not self._alone_wanted]
        found = min(workers or shared, key=lambda each: len(each.sessions), default=None)
        if found is None or not found.sessions:
            return found
        most = self._kind.sessions
        full = most is not None and len(found.sessions) >= most
        return None if full or self._may_start or self._starting else found

    def _idle_remote(self) -> PooledWorker | None:
        return next(
            (w for w in self._workers if not (w.process.pid or w.sessions or w.retired)), None
        )

    async def _add_shared(self) -> PooledWorker:
        self._starting += 1
        try:
            process = await self._local.started()
            return self._add(self._here(process, process.end), alone=False)
        finally:
            self._starting -= 1
            self._free()

    async def _add_alone(self) -> PooledWorker:
        process = await self._local.started()
        return self._add(self._here(process, process.end), alone=True)

    async def _forked(self) -> PooledWorker:
        forked, end = await self._local.forked()
        return self._add(self._here(forked, end), alone=True)

    def _here(self, process: WorkerProcess | Forked, end: socket.socket) -> PooledWorker:
        def connect(
            hear: Callable[[msgspec.Struct], None], over: Callable[[str, bool], None]
        ) -> WorkerConnection:
            return WorkerConnection(
                end,
                what=self._kind.what,
                decode=self._kind.decode,
                hear=hear,
                over=over,
                how_it_ended=process.how_it_ended,
            )

        return PooledWorker(self._kind, process, connect, over=self._drop, changed=self._free)

    def _add(self, worker: PooledWorker, alone: bool) -> PooledWorker:
        worker.alone = alone
        self._workers.append(worker)
        self._watch(worker.watch())
        return worker

    def _watch(
        self, coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]] | None = None
    ) -> None:
        tasks = self._watching if tasks is None else tasks
        task = asyncio.create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
