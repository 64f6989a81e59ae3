"""Processes that environments run in: started, spoken to, and ended, whatever they do.

All of it is called in one event loop, whose thread lasts as long as they do: a worker ends with
the thread that started it.
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

from rlboost_jax.environments import frames
from rlboost_jax.host.proxies import direct_on_loopback
from rlboost_jax.rewards.frames import FrameTooLong, frame
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.supervision import exits

START_SECONDS: Final = 120.0  # imports of a user's module, on a busy host
_LENGTH_BYTES: Final = 4


class Line:
    """Frames to and from a process that runs episodes.

    Args:
        hear: is given each frame.
        over: is called once, when the process is gone or speaks otherwise, with why and whether it
            was ended from outside; not after `close`.
    """

    def __init__(
        self,
        end: socket.socket,
        *,
        hear: Callable[[frames.FromWorker], None],
        over: Callable[[str, bool], None],
        how_it_ended: Callable[[], Awaitable[tuple[str, bool]]],
    ) -> None:
        self._end, self._hear, self._over = end, hear, over
        self._how_it_ended = how_it_ended
        self._writer: asyncio.StreamWriter | None = None
        self._closed = False
        self._early: list[bytes] = []
        self._task = asyncio.create_task(self._listen())

    def say(self, message: frames.ToWorker) -> None:
        """Raises Unsendable."""
        data = frame(message)
        if self._writer is None:
            self._early.append(data)
        elif not self._writer.is_closing():  # else it is gone, which `over` is about to say
            self._writer.write(data)

    def close(self) -> None:
        """Nothing more is received. The process at the other end ends by itself."""
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
            while (received := await frames.received(reader)) is not None:
                self._hear(frames.decode_from_worker(received))
        except (FrameTooLong, msgspec.MsgspecError) as error:
            why = f"the environment worker said what is no answer: {error}"
        if not why:
            why, outside = await self._how_it_ended()
        if not self._closed:
            self.close()
            self._over(why, outside)


class EndedFromOutside(RuntimeError):
    """A process was ended before it was ready, which need not be its own fault.

    The message goes on after the name of the process.
    """


class Process:
    """A worker that was started from here."""

    def __init__(self, setup: frames.Setup) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rlboost_jax.environments.worker", str(theirs.fileno())],
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
        self._setup, self.end = setup, ours

    async def prepare(self, seconds: float) -> None:
        """Wait until it has imported the environment.

        Raises:
            EndedFromOutside: somebody has ended it.
            ConfigError: it cannot use it.
        """
        self.end.setblocking(False)
        loop, name = asyncio.get_running_loop(), self._setup.name
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self.end, frame(self._setup))
                ready = await self._ready(loop)
        except TimeoutError:
            raise ConfigError(
                f"environment.name: importing {name!r} took longer than {seconds:g} s; import less "
                "at the top of the module"
            ) from None
        except ConnectionError:
            ready = None
        if ready is None:
            await self.ended()
            code = exits.of_process(self._process.returncode)
            if exits.is_sent(code):
                raise EndedFromOutside(f"{exits.described(code)} before it had imported {name!r}")
            raise ConfigError(
                f"environment.name: the process that imports {name!r} ended with code "
                f"{self._process.returncode}; its own output says why"
            )
        if ready.mistake:
            raise ConfigError(ready.mistake)

    async def _ready(self, loop: asyncio.AbstractEventLoop) -> frames.Ready | None:
        header = await _exactly(loop, self.end, _LENGTH_BYTES)
        if header is None:
            return None
        data = await _exactly(loop, self.end, int.from_bytes(header, "little"))
        if data is None:
            return None
        ready = frames.decode_from_worker(data)
        assert isinstance(ready, frames.Ready)
        return ready

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """With all that it has started and that is still of its session."""
        if self.lives:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def ended(self) -> None:
        """Once it is over, by itself or killed for not being so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self._process.poll() is None:
                    await asyncio.sleep(0.005)
        self.kill()
        await asyncio.to_thread(self._process.wait)

    async def how_it_ended(self) -> tuple[str, bool]:
        """For a person, and whether somebody else ended it."""
        await self.ended()
        return ended_with(self._process.returncode)


def ended_with(code: int) -> tuple[str, bool]:
    """What a return code says: for a person, and whether somebody else ended the process."""
    code = exits.of_process(code)
    return f"the environment worker {exits.described(code)}", exits.is_sent(code)


async def _exactly(loop: asyncio.AbstractEventLoop, end: socket.socket, count: int) -> bytes | None:
    data = bytearray()  # of a few bytes, or of one frame
    while len(data) < count:
        part = await loop.sock_recv(end, count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
