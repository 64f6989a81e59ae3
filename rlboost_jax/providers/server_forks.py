"""Handle on the prepared process that forks servers (`rlboost_jax.rollout.zygote`)."""

import asyncio
import contextlib
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from pathlib import Path

from rlboost_jax.platform import exits
from rlboost_jax.platform.fork_server import ForkClient, ForkCommand, ForkReport
from rlboost_jax.platform.frames import FrameTooLong, receive_body
from rlboost_jax.platform.program_start import start_program

PREPARE_SECONDS = 60.0  # imports, on a busy machine


class NotForked(RuntimeError):
    """A server process could not be started."""


class ServerForks:
    """Sends commands to one such process at a time: if it is lost, `open` prepares the next.

    Args:
        log: file for what it writes besides reports.
        hear: called with each of its reports.
        orphaned: called when one is gone, behind its last report.
        failed: called with the mistake that ended the reading of reports, instead.
        program: command line of that process.
        leave_seconds: to leave, once nobody commands it any more.
    """

    def __init__(
        self,
        log: Path,
        *,
        program: Sequence[str],
        leave_seconds: float,
        hear: Callable[[ForkReport], None],
        orphaned: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._log, self._hear = log, hear
        self._program, self._leave_seconds = program, leave_seconds
        self._orphaned, self._failed = orphaned, failed
        self._process: Process | None = None
        self._client: ForkClient | None = None
        self._opening = asyncio.Lock()
        self._closing = False

    async def open(self) -> None:
        """Prepare a process; returns at once if there is one.

        Raises:
            NotForked: it does not come up.
        """
        async with self._opening:
            if self._closing:
                raise NotForked("the run is over")
            if self._client is not None:
                if self._client.lives:
                    return
                await self._client.close()
            await asyncio.to_thread(self._log.parent.mkdir, parents=True, exist_ok=True)
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            try:
                with theirs, await asyncio.to_thread(open, self._log, "ab") as log:
                    self._process = await start_program(
                        *self._program,
                        stdin=theirs,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,  # an interrupt in the terminal is not for it
                    )
                await self._prepared(ours, self._process)
            except BaseException:
                ours.close()
                raise
            self._client = ForkClient(ours, hear=self._hear, over=self._over)

    def command(self, command: ForkCommand) -> None:
        """Send a command.

        Raises:
            NotForked: nobody reads it.
        """
        assert self._client is not None
        try:
            self._client.say(command)
        except OSError:
            raise NotForked("the process that forks servers is gone") from None

    async def seal(self) -> None:
        """Prepare no further process; one being prepared is ready when this returns."""
        self._closing = True
        async with self._opening:
            pass

    async def close(self) -> None:
        """End the process; servers live on."""
        if self._client is not None:
            self._client.end_requests()
        if self._process is not None:
            try:
                async with asyncio.timeout(self._leave_seconds):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._client is not None:
            await self._client.close(self._leave_seconds)

    async def _prepared(self, end: socket.socket, process: Process) -> None:
        """Wait for the first report. Raises NotForked."""
        with contextlib.suppress(FrameTooLong, OSError):  # TimeoutError is one
            async with asyncio.timeout(PREPARE_SECONDS):
                if await receive_body(end) is not None:
                    return
        try:
            async with asyncio.timeout(self._leave_seconds):
                code = exits.of_process(await process.wait())
            how = f"{exits.described(code)} as it began"
        except TimeoutError:
            how = f"did not come up in {PREPARE_SECONDS:g} s"
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        raise NotForked(f"the process that forks servers {how}; see {self._log}")

    def _over(self, mistake: Exception | None) -> None:
        if mistake is None:
            self._orphaned()
        else:
            self._closing = True
            self._failed(mistake)
