"""Rollout servers as processes on this host, forked from one prepared process.

What an instance is to the rest of the run, its name and nonce, is a process id here and nowhere
else. Servers outlive the prepared process and the manager: `server_files` says where they are.
Termination is SIGTERM, then SIGKILL once the grace is over.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from signal import Signals
from typing import assert_never

from rlboost_jax.platform.fork_server import (
    ForkEnded,
    ForkRefused,
    ForkReport,
    ForkRequest,
    ForkServerReady,
    ForkSignal,
    ForkStarted,
)
from rlboost_jax.providers.base import (
    ANY_POOL,
    NONCE_VARIABLE,
    Exited,
    Granted,
    Listed,
    ProviderEvent,
    Refused,
    Rendezvous,
    Started,
)
from rlboost_jax.providers.event_queue import EventQueue
from rlboost_jax.providers.log_files import remove_old_logs, tail_of
from rlboost_jax.providers.server_files import RunningServer, ServerFiles
from rlboost_jax.providers.server_forks import NotForked, ServerForks

ZYGOTE = (sys.executable, "-m", "rlboost_jax.rollout.zygote")
START_SECONDS = 10.0  # a fork, once it is prepared
LEAVE_SECONDS = 2.0
TAIL_SECONDS = 1.0  # for the last lines of a log: a disk may not answer


@dataclass
class _Server:
    """A requested server that is not over yet."""

    nonce: str
    settled: asyncio.Future[None]  # done once it has started, or is refused
    asked: bool = False  # the prepared process was asked to fork it
    late: bool = False  # refused before it had started; killed where it starts after all
    pid: int = 0  # 0: not started
    descriptor: int = -1  # of its process, where the prepared one of now has not forked it
    sent: Signals | None = None  # the last signal
    end: asyncio.TimerHandle | None = None  # of its grace


class LocalProvider:
    """Starts servers that dial `rendezvous.local_address`, and log to `<workdir>/logs/<name>.log`.

    On a system without /proc and process descriptors `list` finds nothing.

    Args:
        price_per_hour: dollars, announced by every server.
        zygote: command line of the process that forks servers.
        start_seconds: for a fork to be reported.
        leave_seconds: from SIGTERM to SIGKILL when the run is over.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        *,
        price_per_hour: float,
        zygote: Sequence[str] = ZYGOTE,
        start_seconds: float = START_SECONDS,
        leave_seconds: float = LEAVE_SECONDS,
    ) -> None:
        self._start_seconds, self._leave_seconds = start_seconds, leave_seconds
        self._owns = rendezvous.owns
        self._logs = rendezvous.workdir / "logs"
        self._args = [
            f"--manager={rendezvous.local_address}",
            f"--join={rendezvous.join}",
            f"--price={price_per_hour}",
            "--zone=local",
            "--notices=none",  # this is the trainer's host: where it goes, all go
            "--compiled=none",
        ]
        # A disk that does not answer holds up this thread, and no lease.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="server files")
        self._files = ServerFiles(rendezvous.workdir / "servers")
        self._events = EventQueue()
        self._forks = ServerForks(
            self._logs / f"zygote{rendezvous.pool and '.'}{rendezvous.pool}.log",
            program=zygote,
            leave_seconds=leave_seconds,
            hear=self._hear,
            orphaned=self._orphaned,
            failed=self._failed,
        )
        self._servers: dict[str, _Server] = {}
        self._nonces: set[str] = set()  # of all requests so far
        self._emptied = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()  # over, and their last lines are being read

    async def request(self, name: str, nonce: str, pool: str) -> None:
        if nonce in self._nonces:
            return
        self._nonces.add(nonce)
        server = _Server(nonce, asyncio.get_running_loop().create_future())
        self._servers[name] = server
        if pool != ANY_POOL:
            self._refuse(name, server, f"there is no pool {pool!r} here, only {ANY_POOL!r}")
            return
        try:
            await self._forks.open()
            self._disk.submit(remove_old_logs, self._logs, frozenset(self._servers))
            server.asked = True
            async with asyncio.timeout(self._start_seconds):
                self._forks.command(
                    ForkRequest(
                        name=name,
                        args=(*self._args, f"--name={name}"),
                        # One XLA worker thread a server: more of them only contend for the cores.
                        env={"NPROC": os.environ.get("NPROC", "1"), NONCE_VARIABLE: nonce},
                        log=str(self._logs / f"{name}.log"),
                    )
                )
                await asyncio.wait([server.settled])
        except TimeoutError:
            self._refuse(
                name, server, f"no word of its start in {self._start_seconds:g} s", late=True
            )
        except (NotForked, OSError) as error:
            self._refuse(name, server, str(error), late=server.asked)

    async def terminate(self, name: str, grace_seconds: float) -> None:
        server = self._servers.get(name)
        if server is None:
            return
        await asyncio.wait([server.settled])
        if self._servers.get(name) is not server:
            return
        if grace_seconds <= 0:
            self._send(name, server, signal.SIGKILL)
            return
        self._send(name, server, signal.SIGTERM)
        loop = asyncio.get_running_loop()
        moment = loop.time() + grace_seconds
        if server.end is None or moment < server.end.when():
            if server.end is not None:
                server.end.cancel()
            server.end = loop.call_at(moment, self._send, name, server, signal.SIGKILL)

    async def list(self) -> tuple[Listed, ...]:
        for name, found in await asyncio.wrap_future(self._disk.submit(self._noted)):
            if name not in self._servers:
                server = _Server(found.nonce, asyncio.get_running_loop().create_future())
                server.settled.set_result(None)
                self._nonces.add(found.nonce)
                self._servers[name] = server
                self._adopt(name, server, found)
        return tuple(Listed(name, s.nonce) for name, s in self._running() if not s.late)

    def events(self) -> AsyncIterator[ProviderEvent]:
        return self._events.read()

    async def close(self) -> None:
        await self._forks.seal()
        if starting := [s.settled for s in self._servers.values() if not s.settled.done()]:
            await asyncio.wait(starting)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for name, server in self._running():
                self._send(name, server, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._leave_seconds):
                    # A late server may still report that it started, and then that it ended.
                    while any(server.pid or server.late for server in self._servers.values()):
                        self._emptied.clear()
                        await self._emptied.wait()
        await self._forks.close()
        if self._ending:
            await asyncio.wait(self._ending)
        await asyncio.to_thread(self._disk.shutdown)
        self._events.close()

    def _noted(self) -> Sequence[tuple[str, RunningServer]]:
        """Running servers that have files."""
        found = ((name, self._files.find(name)) for name in self._files.names() if self._owns(name))
        return [(name, each) for name, each in found if each is not None]

    def _running(self) -> Sequence[tuple[str, _Server]]:
        return [(name, server) for name, server in self._servers.items() if server.pid]

    def _hear(self, report: ForkReport) -> None:
        """Process a report of the forking process."""
        if isinstance(report, ForkServerReady) or report.name not in self._servers:
            return
        name, server = report.name, self._servers[report.name]
        match report:
            case ForkStarted(pid=pid):
                server.pid = pid
                self._disk.submit(self._files.write, name, server.nonce, pid)
                if server.late:
                    self._send(name, server, signal.SIGKILL)
                else:
                    self._events.put(Granted(name, server.nonce))
                    self._events.put(Started(name, server.nonce))
                    server.settled.set_result(None)
            case ForkRefused(reason=reason):
                self._refuse(name, server, reason)
            case ForkEnded(code=code):
                if server.pid:
                    self._over(name, server, code)
            case unknown:
                assert_never(unknown)

    def _refuse(self, name: str, server: _Server, reason: str, *, late: bool = False) -> None:
        """Report a refusal, unless an event was reported already.

        Args:
            late: it may start all the same.
        """
        if server.pid:  # it has, at the last moment
            return
        if not server.settled.done():
            server.settled.set_result(None)
            self._events.put(Refused(name, server.nonce, reason))
        server.late = late
        if not late:
            self._forget(name)

    def _over(self, name: str, server: _Server, code: int | None) -> None:
        self._forget(name)
        self._disk.submit(self._files.remove, name)
        if not server.late:
            lines = asyncio.wrap_future(self._disk.submit(tail_of, self._logs / f"{name}.log"))
            task = asyncio.create_task(self._say_end(name, server.nonce, code, lines))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _say_end(
        self, name: str, nonce: str, code: int | None, lines: "asyncio.Future[tuple[str, ...]]"
    ) -> None:
        await asyncio.wait([lines], timeout=TAIL_SECONDS)
        log = lines.result() if lines.done() else ()
        reason = f"exit code {'unknown' if code is None else code}"
        if code and code > 0 and log:  # one that was killed has not said why
            reason = f"{reason}: {log[-1]}"
        self._events.put(Exited(name, nonce, reason, code, log))

    def _forget(self, name: str) -> None:
        server = self._servers.pop(name, None)
        if server is not None and server.end is not None:
            server.end.cancel()
        self._emptied.set()

    def _orphaned(self) -> None:
        """Report servers that ended with the process that forked them.

        Others outlive it.
        """
        for name, server in list(self._servers.items()):
            if server.descriptor >= 0 or not server.asked:
                continue
            if not server.pid:
                self._refuse(name, server, "the process that forks servers reports no more")
            elif (found := self._disk.submit(self._files.find, name).result()) is None:
                self._over(name, server, None)
            else:
                self._adopt(name, server, found)
                if server.sent is not None:  # it may not have been passed on
                    self._send(name, server, server.sent)

    def _failed(self, error: BaseException) -> None:
        for name, server in list(self._servers.items()):
            if not server.settled.done():
                self._refuse(name, server, "the process that forks servers reports no more")
        self._events.fail(error)

    def _adopt(self, name: str, server: _Server, found: RunningServer) -> None:
        """Signal and watch a server through a process descriptor from now on."""
        server.pid, server.descriptor = found.pid, found.descriptor
        asyncio.get_running_loop().add_reader(found.descriptor, self._adopted_left, name, server)

    def _adopted_left(self, name: str, server: _Server) -> None:
        asyncio.get_running_loop().remove_reader(server.descriptor)
        os.close(server.descriptor)
        self._over(name, server, None)

    def _send(self, name: str, server: _Server, number: Signals) -> None:
        server.sent = number
        if server.descriptor < 0:
            with contextlib.suppress(NotForked):  # it is sent again: `_orphaned` is about to run
                self._forks.command(ForkSignal(name=name, number=number))
            return
        with contextlib.suppress(ProcessLookupError):  # its end is seen in a moment
            signal.pidfd_send_signal(server.descriptor, number)
