"""Rollout servers as processes on this host, forked from one prepared process.

The provider starts and signals; which instance and when is the manager's decision. Every
server started is reported as exited exactly once, whatever ended it. Servers outlive the
prepared process: where that is lost, the next start prepares another.

`<workdir>/servers/<instance>` holds the process id and start time of each server that runs,
so that the next provider finds what a killed manager has left.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

from rlboost_jax import processes
from rlboost_jax.fleet.logs import remove_old_logs

LEAVE_SECONDS = 2.0  # from SIGTERM to SIGKILL when the run is over
PREPARE_SECONDS = 60.0  # imports, on a busy machine
START_SECONDS = 10.0  # a fork, once it is prepared
ZYGOTE = (sys.executable, "-m", "rlboost_jax.fleet.zygote")

OnExit = Callable[[str, int | str], None]
OnFailure = Callable[[BaseException], None]

log = logging.getLogger(__name__)


class ServerNotStarted(RuntimeError):
    """A server process could not be started."""


class LocalProvider:
    """Starts rollout servers that dial `address`.

    Args:
        workdir: servers log to `<workdir>/logs/<instance>.log`.
        address: HOST:PORT of the manager.
        join: folder with the credentials of servers; its content is never passed on.
        price_per_hour: dollars, announced by every server.
        on_exit: called with (instance, exit code) in the event loop; the code is negative
            for the signal that ended it, and "unknown" for a server that was adopted.
        on_failure: called with the mistake that ended the reading of reports. Nothing is
            started from then on, and exits are not heard of any more.
        zygote: the command of the process that servers are forked from.
        start_seconds: for a fork, once it is prepared.
        leave_seconds: from SIGTERM to SIGKILL when the run is over.
    """

    def __init__(
        self,
        workdir: Path,
        address: str,
        join: Path,
        *,
        price_per_hour: float,
        on_exit: OnExit,
        on_failure: OnFailure,
        zone: str = "local",
        zygote: Sequence[str] = ZYGOTE,
        start_seconds: float = START_SECONDS,
        leave_seconds: float = LEAVE_SECONDS,
    ):
        self._program = tuple(zygote)
        self._start_seconds, self._leave_seconds = start_seconds, leave_seconds
        self._logs = Path(workdir) / "logs"
        self._records = Path(workdir) / "servers"
        self._args = [
            f"--manager={address}",
            f"--join={join}",
            f"--price={price_per_hour}",
            f"--zone={zone}",
            "--notices=none",  # this is the trainer's host: where it goes, all go
        ]
        self._on_exit, self._on_failure = on_exit, on_failure
        self._zygote: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._starting: dict[str, asyncio.Future[int]] = {}
        self._given_up: set[str] = set()  # not started in time; ended if they come after all
        self._pids: dict[str, int] = {}
        self._signals: dict[str, Signals] = {}  # last told the zygote to send
        self._adopted: dict[str, int] = {}  # instance → a descriptor of its process
        self._emptied = asyncio.Event()
        self._closing = False

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the servers started or adopted here that have not exited."""
        return dict(self._pids)

    def adopt(self) -> dict[str, int]:
        """Take over the servers that an earlier provider left in this workdir.

        From now on they are signalled, reported and closed like those started here. On a
        system without /proc and process descriptors nothing is found.

        Returns: names and process ids.
        """
        loop = asyncio.get_running_loop()
        for record in sorted(self._records.glob("*")):
            if record.name in self._pids:
                continue
            descriptor = _process(record)
            if descriptor is None:
                self._forget(record.name)
                continue
            self._pids[record.name] = int(record.read_text().split()[0])
            self._adopted[record.name] = descriptor
            loop.add_reader(descriptor, self._adopted_left, record.name)
        return {instance: self._pids[instance] for instance in self._adopted}

    async def open(self) -> None:
        """Prepare the process that servers are forked from. `start` does it where needed.

        Raises:
            ServerNotStarted: if it does not come up.
        """
        async with self._opening:
            if self._closing:
                raise ServerNotStarted("the run is over")
            if self._reader is not None and not self._reader.done():
                return
            self._logs.mkdir(parents=True, exist_ok=True)
            with open(self._logs / "zygote.log", "ab") as log:
                self._zygote = await asyncio.create_subprocess_exec(
                    *self._program,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # an interrupt in the terminal is not for it
                )
            assert self._zygote.stdout is not None
            try:
                async with asyncio.timeout(PREPARE_SECONDS):
                    line = await self._zygote.stdout.readline()
            except TimeoutError:
                line = b""
            if b'"ready"' not in line:
                with contextlib.suppress(ProcessLookupError):
                    self._zygote.kill()
                await self._zygote.wait()
                raise ServerNotStarted(
                    f"the process that forks servers did not come up in {PREPARE_SECONDS:g} s; "
                    f"see {self._logs / 'zygote.log'}"
                )
            self._reader = asyncio.create_task(self._read(self._zygote.stdout))
            self._reader.add_done_callback(self._read_all)

    async def start(self, instance: str) -> int:
        """Start a server of that name; returns its process id.

        Raises:
            ServerNotStarted: with the reason.
        """
        await self.open()
        remove_old_logs(self._logs, {instance, *self._pids})
        started = asyncio.get_running_loop().create_future()
        self._starting[instance] = started
        try:
            async with asyncio.timeout(self._start_seconds):
                await self._command(
                    start=instance,
                    args=[*self._args, f"--name={instance}"],
                    # One XLA worker thread a server: more of them only contend for the cores.
                    env={"NPROC": os.environ.get("NPROC", "1")},
                    log=str(self._logs / f"{instance}.log"),
                )
                return await started
        except TimeoutError:
            self._given_up.add(instance)
            raise ServerNotStarted(f"no word of its start in {self._start_seconds:g} s") from None
        finally:
            self._starting.pop(instance, None)

    async def signal(self, instance: str, number: Signals) -> bool:
        """Send a signal to a server started or adopted here; False if it is no longer there."""
        if instance not in self._pids:
            return False
        if instance in self._adopted:
            self._signal_adopted(instance, number)
        else:
            self._signals[instance] = number
            with contextlib.suppress(ServerNotStarted):  # it is sent once the server is adopted
                await self._command(signal=instance, number=int(number))
        return True

    async def close(self) -> None:
        """Leave nothing running: SIGTERM, then SIGKILL after `leave_seconds`."""
        self._closing = True
        async with self._opening:  # whatever is being prepared is then there to be ended
            pass
        if self._starting:
            await asyncio.wait(self._starting.values())
        for number in (signal.SIGTERM, signal.SIGKILL):
            for instance in list(self._pids):
                await self.signal(instance, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._leave_seconds):
                    while self._pids:
                        self._emptied.clear()
                        await self._emptied.wait()
        if self._zygote is not None and self._zygote.stdin is not None:
            self._zygote.stdin.close()
            try:
                async with asyncio.timeout(self._leave_seconds):
                    await self._zygote.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._zygote.kill()
                await self._zygote.wait()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=self._leave_seconds)
            self._reader.cancel()

    async def _command(self, **command: Any) -> None:
        assert self._zygote is not None and self._zygote.stdin is not None
        try:
            self._tell(**command)
            await self._zygote.stdin.drain()
        except ConnectionError:
            raise ServerNotStarted("the process that forks servers is gone") from None

    def _tell(self, **command: Any) -> None:
        assert self._zygote is not None and self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(command).encode() + b"\n")

    async def _read(self, reports: asyncio.StreamReader) -> None:
        """Every report there will be. However that ends, no start waits for one any longer."""
        try:
            async for line in reports:
                self._hear(json.loads(line))
            self._orphaned()
        finally:
            for instance in list(self._starting):
                gone = ServerNotStarted("the process that forks servers reports no more")
                self._settle(instance, gone)

    def _read_all(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self._closing = True
            self._on_failure(error)

    def _hear(self, report: dict[str, Any]) -> None:
        if "started" in report:
            instance, pid = report["started"], report["pid"]
            self._pids[instance] = pid
            self._note(instance, pid)
            self._settle(instance, pid)
            if instance in self._given_up:
                self._signals[instance] = signal.SIGKILL
                self._tell(signal=instance, number=int(signal.SIGKILL))
        elif "failed" in report:
            self._given_up.discard(report["failed"])
            self._settle(report["failed"], ServerNotStarted(report["reason"]))
        elif "exited" in report and report["exited"] in self._pids:
            self._left(report["exited"], report["code"])

    def _orphaned(self) -> None:
        """Servers outlive the process that forked them; those that went with it are told now."""
        orphans = self._pids.keys() - self._adopted.keys()
        self._pids = {name: self._pids[name] for name in self._adopted}
        self.adopt()
        signals, self._signals = self._signals, {}
        for instance in orphans & self._adopted.keys() & signals.keys():
            self._signal_adopted(instance, signals[instance])  # it may not have been sent
        for instance in orphans - self._pids.keys():
            self._on_exit(instance, "unknown")
        self._emptied.set()

    def _signal_adopted(self, instance: str, number: Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # its end is seen in a moment
            signal.pidfd_send_signal(self._adopted[instance], number)

    def _adopted_left(self, instance: str) -> None:
        descriptor = self._adopted.pop(instance)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._left(instance, "unknown")

    def _left(self, instance: str, code: int | str) -> None:
        del self._pids[instance]
        self._signals.pop(instance, None)
        self._given_up.discard(instance)
        self._forget(instance)
        self._emptied.set()
        self._on_exit(instance, code)

    def _note(self, instance: str, pid: int) -> None:
        """Without its record a server works as well, but no later manager finds it."""
        try:
            self._records.mkdir(exist_ok=True)
            (self._records / instance).write_text(f"{pid} {processes.start_time(pid)}\n")
        except OSError as error:
            log.warning("no record of %s: %s; no later manager will find it", instance, error)

    def _forget(self, instance: str) -> None:
        with contextlib.suppress(OSError):  # a record of what has ended misleads nobody
            (self._records / instance).unlink(missing_ok=True)

    def _settle(self, instance: str, result: int | Exception) -> None:
        started = self._starting.get(instance)
        if started is None or started.done():
            return
        if isinstance(result, Exception):
            started.set_exception(result)
        else:
            started.set_result(result)


def _process(record: Path) -> int | None:
    """A descriptor of the server that a file tells of; None if it no longer runs."""
    try:
        pid, started = record.read_text().split(maxsplit=1)
        descriptor = os.pidfd_open(int(pid))
    except (OSError, ValueError, AttributeError):  # of it, of the file, of this system
        return None
    if processes.runs(int(pid), started.strip()):
        return descriptor
    os.close(descriptor)
    return None
