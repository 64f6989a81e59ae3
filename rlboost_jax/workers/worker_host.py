"""A host of workers, each with a connection to the trainer.

Frames go through as they are. What ends a connection ends its worker, and another one dials; what
ends a worker is said to the trainer as the last. Nothing of a session outlives a connection: the
trainer has what it needs to begin it again.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Final

import aiohttp

from rlboost_jax.platform.backoff import backoff_seconds
from rlboost_jax.platform.frames import MAX_BODY_BYTES, body_of, framed, read_body
from rlboost_jax.platform.mistakes import ConfigError, Mistake
from rlboost_jax.trust.credentials import Endpoint, explain
from rlboost_jax.workers.remote_workers import HEARTBEAT_SECONDS, JOIN
from rlboost_jax.workers.worker_kind import WorkerEnded, WorkerKind, WorkerReady
from rlboost_jax.workers.worker_process import (
    START_SECONDS,
    EndedFromOutside,
    WorkerProcess,
)

_REFUSED: Final = (401, 403, 404)
LONGEST_PAUSE_SECONDS: Final = 5.0  # between two attempts to dial


class TrainerUnreachable(Mistake, RuntimeError):
    """No trainer has answered within the patience."""


class HostRefused(Mistake, RuntimeError):
    """The trainer rejects this host, or this host cannot use what its workers import."""


class WorkerHost:
    """Workers on this host, each with a connection to the trainer.

    Args:
        route: of the trainer's listener.
        folder: in the run's folder, with what opens it.
        kind_of: the kind that a first frame asks for. Raises ValueError.
        workers: processes, each with a connection of its own.
        patience_seconds: without any trainer, before this gives up.
        say: shows a line.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        route: str,
        folder: str,
        kind_of: Callable[[bytes], WorkerKind],
        workers: int,
        patience_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._endpoint, self._workers = endpoint, workers
        self._route, self._folder, self._kind_of = route, folder, kind_of
        self._patience, self._say = patience_seconds, say
        self._heard_at = time.monotonic()  # of a trainer
        self._said = ""

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            TrainerUnreachable, HostRefused
        """
        async with (
            aiohttp.ClientSession(headers=self._endpoint.headers) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._workers):
                group.create_task(self._slot(session))

    async def _slot(self, session: aiohttp.ClientSession) -> None:
        """Run one worker after the other."""
        failed = 0
        while True:
            try:
                await self._talk(session)
                failed = 0
            except aiohttp.WSServerHandshakeError as error:
                if error.status in _REFUSED:
                    raise HostRefused(
                        f"the trainer at {self._endpoint.address} refuses this host "
                        f"({error.status}); copy its <workdir>/{self._folder}/{JOIN} again"
                    ) from None
                failed += 1
            except (aiohttp.ClientError, OSError) as error:
                failed += 1
                self._say_once(
                    explain(error) or f"no trainer at {self._endpoint.address}: {error}; dialling"
                )
            if time.monotonic() - self._heard_at > self._patience:
                raise TrainerUnreachable(
                    f"no trainer at {self._endpoint.address} for {self._patience:g} s; the run is "
                    "over, or --patience is too short"
                )
            pause = backoff_seconds(failed, first=0.1, longest=LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        """Run one worker, until it or the trainer ends."""
        endpoint = self._endpoint
        async with session.ws_connect(
            endpoint.url(self._route),
            ssl=endpoint.tls,
            max_msg_size=MAX_BODY_BYTES,
            heartbeat=HEARTBEAT_SECONDS,
        ) as socket:
            self._heard_at = time.monotonic()
            first = await socket.receive()
            if first.type is not aiohttp.WSMsgType.BINARY:
                return
            try:
                kind = self._kind_of(first.data)
            except ValueError as error:
                raise HostRefused(f"{endpoint.address} says {error}") from None
            served = kind.what.removesuffix(" worker")
            self._say_once(f"serving {served} {kind.imports} to {endpoint.address}")
            process = WorkerProcess(kind)
            try:
                await self._relay(socket, process)
            finally:
                self._heard_at = time.monotonic()
                process.stop()
                process.end.close()
                await process.ended()

    async def _relay(self, socket: aiohttp.ClientWebSocketResponse, process: WorkerProcess) -> None:
        try:
            await process.prepare(START_SECONDS)
        except EndedFromOutside:
            return
        except ConfigError as error:
            await socket.send_bytes(body_of(WorkerReady(mistake=str(error))))
            raise HostRefused(str(error)) from None
        await socket.send_bytes(body_of(WorkerReady()))
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
            ended = WorkerEnded(why=why, outside=outside)
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(body_of(ended))
        writer.close()

    def _say_once(self, line: str) -> None:
        """Show a line unless it is the same as the last."""
        if line != self._said:
            self._said = line
            self._say(line)


async def _to_worker(socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while (received := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            writer.write(framed(received.data))
            await writer.drain()


async def _to_trainer(
    reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse
) -> None:
    with contextlib.suppress(ConnectionError):
        while (data := await read_body(reader)) is not None:
            await socket.send_bytes(data)
