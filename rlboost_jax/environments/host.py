"""A host of environments: workers here, each with a connection to the trainer.

Frames go through as they are. What ends a connection ends its worker, and another one dials; what
ends a worker is said to the trainer as the last. Nothing of an episode outlives a connection: the
trainer has its journal.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Final

import aiohttp

from rlboost_jax.backoff import backoff_seconds
from rlboost_jax.credentials import Endpoint, explain
from rlboost_jax.environments import frames
from rlboost_jax.environments.processes import START_SECONDS, EndedFromOutside, Process
from rlboost_jax.environments.remote import HEARTBEAT_SECONDS, ROUTE
from rlboost_jax.rewards.frames import MAX_FRAME_BYTES, frame
from rlboost_jax.settings.errors import ConfigError, Mistake

_LENGTH_BYTES: Final = 4
_REFUSED: Final = (401, 403, 404)
LONGEST_PAUSE_SECONDS: Final = 5.0  # between two attempts to dial


class TrainerGone(Mistake, RuntimeError):
    """Nobody has answered for as long as there was patience."""


class HostRefused(Mistake, RuntimeError):
    """The trainer does not let this host in, or this host cannot use the environment."""


class EnvironmentHost:
    """Args:
    workers: processes, each with a connection of its own.
    patience_seconds: without any trainer, before this gives up.
    say: shows a line.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        workers: int,
        patience_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._endpoint, self._workers = endpoint, workers
        self._patience, self._say = patience_seconds, say
        self._heard_at = time.monotonic()  # of a trainer
        self._said = ""

    async def run(self) -> None:
        """Until it is cancelled.

        Raises:
            TrainerGone, HostRefused
        """
        async with (
            aiohttp.ClientSession(headers=self._endpoint.headers) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._workers):
                group.create_task(self._slot(session))

    async def _slot(self, session: aiohttp.ClientSession) -> None:
        """One worker after the other."""
        failed = 0
        while True:
            try:
                await self._talk(session)
                failed = 0
            except aiohttp.WSServerHandshakeError as error:
                if error.status in _REFUSED:
                    raise HostRefused(
                        f"the trainer at {self._endpoint.address} refuses this host "
                        f"({error.status}); copy its <workdir>/environment_hosts/join again"
                    ) from None
                failed += 1
            except (aiohttp.ClientError, OSError) as error:
                failed += 1
                self._say_once(
                    explain(error) or f"no trainer at {self._endpoint.address}: {error}; dialling"
                )
            if time.monotonic() - self._heard_at > self._patience:
                raise TrainerGone(
                    f"no trainer at {self._endpoint.address} for {self._patience:g} s; the run is "
                    "over, or --patience is too short"
                )
            pause = backoff_seconds(failed, first=0.1, longest=LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        """With one worker, until it or the trainer ends."""
        endpoint = self._endpoint
        async with session.ws_connect(
            endpoint.url(ROUTE),
            ssl=endpoint.tls,
            max_msg_size=MAX_FRAME_BYTES,
            heartbeat=HEARTBEAT_SECONDS,
        ) as socket:
            self._heard_at = time.monotonic()
            first = await socket.receive()
            if first.type is not aiohttp.WSMsgType.BINARY:
                return
            setup = frames.decode_to_worker(first.data)
            if not isinstance(setup, frames.Setup):
                raise HostRefused(f"{endpoint.address} says {type(setup).__name__} before Setup")
            self._say_once(f"serving environment {setup.name!r} to {endpoint.address}")
            process = Process(setup)
            try:
                await self._relay(socket, process)
            finally:
                self._heard_at = time.monotonic()
                process.kill()
                process.end.close()
                await process.ended()

    async def _relay(self, socket: aiohttp.ClientWebSocketResponse, process: Process) -> None:
        try:
            await process.prepare(START_SECONDS)
        except EndedFromOutside:
            return
        except ConfigError as error:
            await socket.send_bytes(frame(frames.Ready(mistake=str(error)))[_LENGTH_BYTES:])
            raise HostRefused(str(error)) from None
        await socket.send_bytes(frame(frames.Ready())[_LENGTH_BYTES:])
        reader, writer = await asyncio.open_connection(sock=process.end)
        down = asyncio.create_task(_to_worker(socket, writer))
        up = asyncio.create_task(_to_trainer(reader, socket))
        await asyncio.wait((down, up), return_when=asyncio.FIRST_COMPLETED)
        worker_ended = not down.done()
        for task in (down, up):
            task.cancel()
        await asyncio.wait((down, up))
        if worker_ended:
            why, outside = await process.how_it_ended()
            ended = frames.Ended(why=why, outside=outside)
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(frame(ended)[_LENGTH_BYTES:])
        writer.close()

    def _say_once(self, line: str) -> None:
        """The same line again and again is of no use."""
        if line != self._said:
            self._said = line
            self._say(line)


async def _to_worker(socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while (received := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            writer.write(len(received.data).to_bytes(_LENGTH_BYTES, "little") + received.data)
            await writer.drain()


async def _to_trainer(
    reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse
) -> None:
    with contextlib.suppress(ConnectionError):
        while (data := await frames.received(reader)) is not None:
            await socket.send_bytes(data)
