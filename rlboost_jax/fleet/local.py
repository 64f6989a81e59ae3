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
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEAVE_SECONDS = 2.0  # from SIGTERM to SIGKILL when the run is over
PREPARE_SECONDS = 60.0  # imports, on a busy machine

OnExit = Callable[[str, int | str], None]


class ServerNotStarted(RuntimeError):
    """A server process could not be started."""


class LocalProvider:
    """Starts rollout servers that dial `address`.

    Args:
        workdir: servers log to `<workdir>/logs/<instance>.log`.
        address: HOST:PORT of the manager.
        token_file: with the bearer token; its content is never passed on.
        price_per_hour: dollars, announced by every server.
        on_exit: called with (instance, exit code) in the event loop; the code is negative
            for the signal that ended it, and "unknown" for a server that was adopted.
    """

    def __init__(
        self,
        workdir: Path,
        address: str,
        token_file: Path,
        *,
        price_per_hour: float,
        on_exit: OnExit,
        zone: str = "local",
    ):
        self._logs = Path(workdir) / "logs"
        self._records = Path(workdir) / "servers"
        self._args = [
            f"--manager={address}",
            f"--token_file={token_file}",
            f"--price={price_per_hour}",
            f"--zone={zone}",
        ]
        self._on_exit = on_exit
        self._zygote: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._starting: dict[str, asyncio.Future[int]] = {}
        self._pids: dict[str, int] = {}
        self._adopted: dict[str, int] = {}  # instance → a descriptor of its process
        self._emptied = asyncio.Event()
        self._closing = False

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the servers started or adopted here that have not exited."""
        return dict(self._pids)

    def adopt(self) -> list[str]:
        """Take over the servers that an earlier provider left in this workdir; their names.

        From now on they are signalled, reported and closed like those started here. On a
        system without /proc and process descriptors nothing is found.
        """
        loop = asyncio.get_running_loop()
        for record in sorted(self._records.glob("*")):
            if record.name in self._pids:
                continue
            descriptor = _process(record)
            if descriptor is None:
                record.unlink(missing_ok=True)
                continue
            self._pids[record.name] = int(record.read_text().split()[0])
            self._adopted[record.name] = descriptor
            loop.add_reader(descriptor, self._adopted_left, record.name)
        return list(self._adopted)

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
                    *(sys.executable, "-m", "rlboost_jax.fleet.zygote"),
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

    async def start(self, instance: str) -> int:
        """Start a server of that name; returns its process id.

        Raises:
            ServerNotStarted: with the reason.
        """
        await self.open()
        started = asyncio.get_running_loop().create_future()
        self._starting[instance] = started
        try:
            await self._command(
                start=instance,
                args=[*self._args, f"--name={instance}"],
                # One XLA worker thread a server: more of them only contend for the cores.
                env={"NPROC": os.environ.get("NPROC", "1")},
                log=str(self._logs / f"{instance}.log"),
            )
            return await started
        finally:
            self._starting.pop(instance, None)

    async def signal(self, target: str | int, number: signal.Signals) -> bool:
        """Send a signal to a server; False if it is no longer there.

        Args:
            target: an instance of this provider, or the process id of a server that an
                earlier manager started on this host.
        """
        if isinstance(target, str):
            if target not in self._pids:
                return False
            if target in self._adopted:
                with contextlib.suppress(ProcessLookupError):  # its end is seen in a moment
                    signal.pidfd_send_signal(self._adopted[target], number)
                return True
            await self._command(signal=target, number=int(number))
            return True
        if not _is_server(target):
            return False
        try:
            os.kill(target, number)
        except ProcessLookupError:
            return False
        return True

    async def close(self) -> None:
        """Leave nothing running: SIGTERM, then SIGKILL after `LEAVE_SECONDS`."""
        self._closing = True
        async with self._opening:  # whatever is being prepared is then there to be ended
            pass
        if self._starting:
            await asyncio.wait(self._starting.values())
        for number in (signal.SIGTERM, signal.SIGKILL):
            for instance in list(self._pids):
                with contextlib.suppress(ServerNotStarted):
                    await self.signal(instance, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    while self._pids:
                        self._emptied.clear()
                        await self._emptied.wait()
        if self._zygote is not None and self._zygote.stdin is not None:
            self._zygote.stdin.close()
            with contextlib.suppress(ConnectionError):
                await self._zygote.stdin.wait_closed()
            if self._reader is not None:
                await self._reader
            await self._zygote.wait()

    async def _command(self, **command: Any) -> None:
        assert self._zygote is not None and self._zygote.stdin is not None
        try:
            self._zygote.stdin.write(json.dumps(command).encode() + b"\n")
            await self._zygote.stdin.drain()
        except ConnectionError:
            raise ServerNotStarted("the process that forks servers is gone") from None

    async def _read(self, reports: asyncio.StreamReader) -> None:
        async for line in reports:
            report = json.loads(line)
            if "started" in report:
                self._pids[report["started"]] = report["pid"]
                self._records.mkdir(exist_ok=True)
                record = f"{report['pid']} {_start_time(report['pid'])}\n"
                (self._records / report["started"]).write_text(record)
                self._settle(report["started"], report["pid"])
            elif "failed" in report:
                self._settle(report["failed"], ServerNotStarted(report["reason"]))
            elif "exited" in report and report["exited"] in self._pids:
                self._left(report["exited"], report["code"])
        # Servers outlive the process that forked them; those that went with it are told now.
        orphans = self._pids.keys() - self._adopted.keys()
        self._pids = {name: self._pids[name] for name in self._adopted}
        self.adopt()
        for instance in orphans - self._pids.keys():
            self._on_exit(instance, "unknown")
        self._emptied.set()
        for instance in list(self._starting):
            self._settle(instance, ServerNotStarted("the process that forks servers is gone"))

    def _adopted_left(self, instance: str) -> None:
        descriptor = self._adopted.pop(instance)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._left(instance, "unknown")

    def _left(self, instance: str, code: int | str) -> None:
        del self._pids[instance]
        (self._records / instance).unlink(missing_ok=True)
        self._emptied.set()
        self._on_exit(instance, code)

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
        pid, started = map(int, record.read_text().split())
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError, AttributeError):  # of it, of the file, of this system
        return None
    if _is_server(pid) and _start_time(pid) == started:
        return descriptor
    os.close(descriptor)
    return None


def _start_time(pid: int) -> int:
    """When a process began, in the system's own count; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[19])  # the 22nd of all; the name before may hold anything


def _is_server(pid: int) -> bool:
    """Whether that process is one of ours: process ids are used again."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"rlboost_jax" in command
