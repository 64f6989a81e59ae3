"""Handle on the prepared process that forks servers (`rlboost_jax.rollout.zygote`)."""

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlboost_jax.platform import exits, foreign_json
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
        hear: Callable[[dict[str, Any]], None],
        orphaned: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._log, self._hear = log, hear
        self._program, self._leave_seconds = program, leave_seconds
        self._orphaned, self._failed = orphaned, failed
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
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
            if self._reader is not None and not self._reader.done():
                return
            await asyncio.to_thread(self._log.parent.mkdir, parents=True, exist_ok=True)
            with await asyncio.to_thread(open, self._log, "ab") as log:
                self._process = await start_program(
                    *self._program,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=log,
                    start_new_session=True,  # an interrupt in the terminal is not for it
                )
            assert self._process.stdout is not None
            try:
                async with asyncio.timeout(PREPARE_SECONDS):
                    line = await self._process.stdout.readline()
            except TimeoutError:
                line = None
            if line is None or b'"ready"' not in line:
                raise NotForked(
                    f"{await self._how_it_failed(self._process, line)}; see {self._log}"
                )
            self._reader = asyncio.create_task(self.read(self._process.stdout))
            self._reader.add_done_callback(self._read_all)

    async def command(self, **command: Any) -> None:
        """Write a command, and wait until it is written.

        Raises:
            NotForked: nobody reads it.
        """
        self.tell(**command)
        assert self._process is not None and self._process.stdin is not None
        try:
            await self._process.stdin.drain()
        except ConnectionError:
            raise NotForked("the process that forks servers is gone") from None

    def tell(self, **command: Any) -> None:
        """Begin to write a command."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def read(self, reports: asyncio.StreamReader) -> None:
        """Read all reports."""
        async for line in reports:
            self._hear(foreign_json.decode(line, "the process that forks servers", dict))
        self._orphaned()

    async def seal(self) -> None:
        """Prepare no further process; one being prepared is ready when this returns."""
        self._closing = True
        async with self._opening:
            pass

    async def close(self) -> None:
        """End the process; servers live on."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                async with asyncio.timeout(self._leave_seconds):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=self._leave_seconds)
            self._reader.cancel()

    async def _how_it_failed(self, process: Process, line: bytes | None) -> str:
        """End a process that is not ready, and return why.

        Args:
            line: that it said first; None: nothing in time.
        """
        if line == b"":  # it has ended, or is about to
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._leave_seconds):
                    code = exits.of_process(await process.wait())
                    return f"the process that forks servers {exits.described(code)} as it began"
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return f"the process that forks servers did not come up in {PREPARE_SECONDS:g} s"

    def _read_all(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self._closing = True
            self._failed(error)
