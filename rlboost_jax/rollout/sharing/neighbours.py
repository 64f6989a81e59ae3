"""A rollout server among those of other runs on its device.

All are given one path. Who has its lock presides over the auction at a Unix socket there; the
others dial it. When the presider goes, the kernel frees the lock and another takes over. A server
keeps the device, or stays without, until it is told otherwise, and has it while nobody presides
that it could ask for so long.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, assert_never

import msgspec

from rlboost_jax.rollout.engine_worker import WorkerStopped
from rlboost_jax.rollout.sharing.neighbour_protocol import (
    MAX_LINE_BYTES,
    DeviceBid,
    DeviceGiven,
    LetGo,
    decode_given,
    decode_said,
    encode_line,
)
from rlboost_jax.rollout.sharing.presider import Presider
from rlboost_jax.rollout.sharing.socket import SocketUnusable, check_place, peer_uid
from rlboost_jax.trust.listener_limits import ListenerLimits

OPTION: Final = "--neighbour_socket"
AGAIN_SECONDS: Final = 0.2  # between two attempts to preside or to dial
MAX_NEIGHBOURS: Final = 8  # beside the presider
LIMITS: Final = ListenerLimits(
    name="neighbour socket",
    connections=MAX_NEIGHBOURS,  # of this user's own processes; others cannot open it
    credential_connections=MAX_NEIGHBOURS,
    newcomers=1,
    newcomer_seconds=1.0,
    handshake_seconds=1.0,
    connection_bytes=2**17,
    idle_seconds=365 * 86_400.0,  # a run may train for as long as it likes
    message_bytes=MAX_LINE_BYTES,
    credential_bytes=2 * MAX_NEIGHBOURS * MAX_LINE_BYTES,
    total_bytes=2 * MAX_NEIGHBOURS * MAX_LINE_BYTES,
)


class Neighbours:
    """This server's part in the auction of its device.

    Args:
        lend: leaves the device to others (True) or takes it back; returns once it is so.
        say: takes a line for the server's log.
    """

    def __init__(
        self,
        path: Path,
        lend: Callable[[bool], Awaitable[None]],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._path, self._lend, self._say = path, lend, say
        self._price = 0.0
        self._offer: Callable[[float], None] = lambda price: None  # to whoever presides
        self._given: asyncio.Queue[tuple[bool, Callable[[], None]]] = asyncio.Queue()

    def bid(self, price: float) -> None:
        """Bid for the device from now on, as the manager has said."""
        self._price = price
        self._offer(price)

    @contextlib.asynccontextmanager
    async def taking_part(self) -> AsyncIterator[None]:
        """Context in which this server has the device when it is given to it."""
        tasks = [asyncio.ensure_future(part) for part in (self._take_part(), self._obey())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _obey(self) -> None:
        """Let go of the device, or take it, as it is told."""
        while True:
            yours, done = await self._given.get()
            try:
                await self._lend(not yours)
            except WorkerStopped:  # the server ends
                return
            done()

    def _told(self, yours: bool, done: Callable[[], None]) -> None:
        self._given.put_nowait((yours, (lambda: None) if yours else done))

    async def _take_part(self) -> None:
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await self._dial()
                    await asyncio.sleep(AGAIN_SECONDS)
                else:
                    await self._preside()
        except (OSError, SocketUnusable) as error:  # of `_preside`
            self._say(f"no neighbour is heard: {error}")
            self._told(True, lambda: None)
        finally:
            self._offer = lambda price: None
            os.close(lock)

    async def _preside(self) -> None:
        check_place(self._path, OPTION)
        presider = Presider()
        hearing: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

        def tell_self(yours: bool, turn: int) -> None:
            self._told(yours, lambda: presider.let_go(own, turn))

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hearing[asyncio.current_task()] = writer
            try:
                own_user = peer_uid(writer.get_extra_info("socket")) == os.geteuid()
                if own_user and len(hearing) <= LIMITS.connections:
                    await _hear(reader, writer, presider)
            finally:
                hearing.pop(asyncio.current_task())
                writer.close()

        own = presider.enter(tell_self, lambda: None)  # its own engine is waited for
        presider.bid(own, self._price)
        self._offer = lambda price: presider.bid(own, price)
        server = await asyncio.start_unix_server(connected, self._path, limit=LIMITS.message_bytes)
        os.chmod(self._path, 0o600)
        self._say(f"neighbours are heard at {self._path}")
        try:
            await asyncio.Event().wait()
        finally:
            presider.close()
            server.close()
            tasks = [task for task in hearing if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _dial(self) -> None:
        """Take part in the auction of another server, until that is over."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=MAX_LINE_BYTES)
        except OSError:  # it has not begun, or has just ended
            return
        try:
            if peer_uid(writer.get_extra_info("socket")) != os.geteuid():
                return

            def send(said: DeviceBid | LetGo) -> None:
                if not writer.is_closing():
                    writer.write(encode_line(said) + b"\n")

            self._offer = lambda price: send(DeviceBid(price=price))
            self._offer(self._price)
            while line := await reader.readline():
                given = decode_given(line)
                self._told(given.yours, partial(send, LetGo(turn=given.turn)))
        except (OSError, ValueError, msgspec.MsgspecError):
            return
        finally:
            self._offer = lambda price: None
            writer.close()


async def _hear(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, presider: Presider
) -> None:
    """Hear one neighbour until its connection ends or it says what is no line of the protocol."""

    def tell(yours: bool, turn: int) -> None:
        if not writer.is_closing():
            writer.write(encode_line(DeviceGiven(yours=yours, turn=turn)) + b"\n")

    who = presider.enter(tell, writer.transport.abort)
    try:
        while line := await reader.readline():
            match decode_said(line):
                case DeviceBid(price=price):
                    presider.bid(who, price)
                case LetGo(turn=turn):
                    presider.let_go(who, turn)
                case never:
                    assert_never(never)
    except (OSError, ValueError, msgspec.MsgspecError, asyncio.CancelledError):
        return
    finally:
        presider.leave(who)
