"""A worker's process: its start, its frames and its end.

All of it is called in one event loop, whose thread lasts as long as the process does: a worker may
end with the thread that started it.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from rlboost_jax.platform import exits
from rlboost_jax.platform.frames import FrameTooLong, frame, read_body, receive_body
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.proxies import direct_on_loopback
from rlboost_jax.workers.worker_kind import WorkerKind, WorkerReady

START_SECONDS: Final = 120.0  # imports of a user's module, on a busy host
LAST_SECONDS: Final = 1.0  # for a process to be gone once it has closed its socket


class WorkerConnection:
    """Frames to and from a worker.

    Args:
        decode: a frame. Raises MsgspecError.
        hear: is given each frame.
        over: is called once, when the process is gone or its frames are invalid, with why and
            whether it was ended from outside; not after `close`.
    """

    def __init__(
        self,
        end: socket.socket,
        *,
        what: str,
        decode: Callable[[bytes], msgspec.Struct],
        hear: Callable[[msgspec.Struct], None],
        over: Callable[[str, bool], None],
        how_it_ended: Callable[[], Awaitable[tuple[str, bool]]],
    ) -> None:
        self._end, self._hear, self._over = end, hear, over
        self._what, self._decode, self._how_it_ended = what, decode, how_it_ended
        self._writer: asyncio.StreamWriter | None = None
        self._closed = False
        self._early: list[bytes] = []
        self._task = asyncio.create_task(self._listen())

    def say(self, message: msgspec.Struct) -> None:
        """Send a frame. Raises Unsendable."""
        data = frame(message)
        if self._writer is None:
            self._early.append(data)
        elif not self._writer.is_closing():  # else it is gone, which `over` is about to say
            self._writer.write(data)

    def close(self) -> None:
        """Stop receiving. The process at the other end ends by itself."""
        self._closed = True
        self._task.cancel()
        if self._writer is not None:
            self._writer.close()
        else:
            self._end.close()

    async def _listen(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._end)
        for data in self._early:
            self._writer.write(data)
        why, outside = "", False
        try:
            while (received := await read_body(reader)) is not None:
                self._hear(self._decode(received))
        except (FrameTooLong, msgspec.MsgspecError) as error:
            why = f"the {self._what} said what is no answer: {error}"
        if not why:
            why, outside = await self._how_it_ended()
        if not self._closed:
            self.close()
            self._over(why, outside)


class EndedFromOutside(RuntimeError):
    """A process was ended before it was ready, which need not be its own fault.

    The message goes on after the name of the process.
    """


class WorkerProcess:
    """A worker that was started from here."""

    def __init__(self, kind: WorkerKind) -> None:
        """Start the process. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", kind.module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={
                    "OMP_NUM_THREADS": "1",
                    "MALLOC_ARENA_MAX": "2",  # else each of hundreds of threads may have its own
                    **os.environ,
                    **direct_on_loopback(os.environ),  # tools may be servers on this host
                    "PYTHONHASHSEED": "0",  # sets are in the same order in every worker
                    "JAX_PLATFORMS": "cpu",  # the accelerator is the trainer's
                },
                start_new_session=True,  # an interrupt of the trainer is not for them
            )
        self.pid = self._process.pid
        self.kind, self.end = kind, ours

    async def prepare(self, seconds: float) -> None:
        """Wait until it has imported what it runs.

        Raises:
            EndedFromOutside: somebody has ended it.
            ConfigError: it cannot use what it imports.
        """
        self.end.setblocking(False)
        loop, kind = asyncio.get_running_loop(), self.kind
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self.end, frame(kind.setup))
                ready = await self._ready()
        except TimeoutError:
            raise ConfigError(
                f"{kind.setting}: importing {kind.imports} took longer than {seconds:g} s; import "
                "less at the top of the module"
            ) from None
        except ConnectionError:
            ready = None
        if ready is None:
            await self.ended()
            code = exits.of_process(self._process.returncode)
            if exits.is_sent(code):
                raise EndedFromOutside(
                    f"{exits.described(code)} before it had imported {kind.imports}"
                )
            raise ConfigError(
                f"{kind.setting}: the process that imports {kind.imports} ended with code "
                f"{self._process.returncode}; its own output says why"
            )
        if ready.mistake:
            raise ConfigError(ready.mistake)

    async def _ready(self) -> WorkerReady | None:
        try:
            data = await receive_body(self.end)
            ready = None if data is None else self.kind.decode(data)
        except (FrameTooLong, msgspec.MsgspecError) as error:
            raise self._invalid(error) from None
        if not (ready is None or isinstance(ready, WorkerReady)):
            raise self._invalid(f"{type(ready).__name__} comes before it is ready")
        return ready

    def _invalid(self, why: object) -> ConfigError:
        kind = self.kind
        return ConfigError(
            f"{kind.setting}: while importing {kind.imports} the {kind.what} said what is no "
            f"answer: {why}; a module must not write to file descriptors that it did not open"
        )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask the process to end with what it has started, or kill both; see `end_seconds`."""
        if self.kind.end_seconds:
            self._process.terminate()
        else:
            self._kill()

    async def ended(self) -> None:
        """Wait until the process is over, killing it if it does not end by itself."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.kind.end_seconds or LAST_SECONDS):
                while self._process.poll() is None:
                    await asyncio.sleep(0.005)
        if self.lives:
            self._kill()
            await asyncio.to_thread(self._process.wait)

    async def how_it_ended(self) -> tuple[str, bool]:
        """Description for people, and whether somebody else ended it."""
        await self.ended()
        return ended_with(self.kind.what, self._process.returncode)

    def _kill(self) -> None:
        """Kill the process with everything it has started in its session."""
        if self.lives:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def ended_with(what: str, code: int) -> tuple[str, bool]:
    """Description of a return code for people, and whether somebody else ended the process."""
    code = exits.of_process(code)
    return f"the {what} {exits.described(code)}", exits.is_sent(code)
