"""Execution of an external program, with bounded time and output and without a shell."""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Final

from rlboost_jax.platform.program_start import start_program
from rlboost_jax.providers.launcher import LaunchFailed

MAX_BYTES: Final = 4 * 2**20  # of output that is kept: 20,000 jobs of 200 characters
REST_SECONDS: Final = 1.0  # for output of children that a program leaves behind
PIPE_BYTES: Final = 2**20  # that one holds, at most
LINE: Final = 300  # characters of a reason


async def run_program(
    words: Sequence[str],
    *,
    timeout_seconds: float,
    environment: Mapping[str, str],
    given: str = "",
) -> str:
    """Run a program and return what it printed, if it exits with 0.

    Args:
        environment: all of it.
        given: on its standard input.

    Raises:
        LaunchFailed: with the last line that it wrote. It is `sure` where there is no such program.
    """
    outputs = [_Output(), _Output()]
    try:
        process = await start_program(
            *words,
            stdin=PIPE if given else DEVNULL,
            stdout=outputs[0].end,
            stderr=outputs[1].end,
            env=dict(environment),
            start_new_session=True,  # it is ended with its children, and hears no interrupt
        )
    except BaseException as error:
        for output in outputs:
            output.close()
        if not isinstance(error, OSError | ValueError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise LaunchFailed(f"cannot run {words[0]}: {reason}", sure=True) from None
    readers = [asyncio.create_task(output.read()) for output in outputs]
    try:
        async with asyncio.timeout(timeout_seconds):
            if given:
                assert process.stdin is not None
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(given.encode())
                    await process.stdin.drain()
                process.stdin.close()
            code = await process.wait()
    except TimeoutError:
        raise LaunchFailed(f"{words[0]} did not end in {timeout_seconds:g} s") from None
    finally:
        if process.returncode is None:
            await _end(process)
        await asyncio.wait(readers, timeout=REST_SECONDS)
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
    out, err = (bytes(output.kept).decode(errors="replace") for output in outputs)
    if code != 0:
        said = last_line(err) or last_line(out) or "it said nothing"
        raise LaunchFailed(f"{words[0]} ended with code {code}: {said}")
    if len(outputs[0].kept) >= MAX_BYTES:
        raise LaunchFailed(f"{words[0]} printed more than {MAX_BYTES:,} bytes")
    return out


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LINE] if lines else ""


class _Output:
    """A pipe of our own: asyncio considers a program running while any child holds its pipe.

    Attributes:
        end: that the program writes to.
        kept: the first `MAX_BYTES`.
    """

    def __init__(self) -> None:
        self._source, self.end = os.pipe()
        os.set_blocking(self._source, False)
        self.kept = bytearray()

    def close(self) -> None:
        os.close(self._source)
        os.close(self.end)

    async def read(self) -> None:
        """Read until no process can write any more; if cancelled, read what has come."""
        os.close(self.end)
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._source, ready.set)
        try:
            while self._take():
                ready.clear()
                await ready.wait()
        finally:
            self._take()  # this process may have had no time for it
            loop.remove_reader(self._source)
            os.close(self._source)

    def _take(self) -> bool:
        """Read what is in the pipe now; False once no process can write any more."""
        try:
            part = os.read(self._source, PIPE_BYTES)
        except BlockingIOError:
            return True
        self.kept += part[: MAX_BYTES - len(self.kept)]
        return bool(part)


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:  # a child elsewhere may hold its other end
        process.stdin.transport.abort()
    await process.wait()
