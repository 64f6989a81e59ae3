"""Workers on hosts of their own: they dial the trainer, each by a connection of its own.

A host shows the token and the certificate of `<workdir>/environment_hosts/join`, which open
nothing else, and gets what it needs to know of the run. From then on a worker there is like one
here, and what ends the connection ends it: its episodes are made again elsewhere.
"""

import asyncio
import contextlib
import datetime
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import WSMessage, WSMsgType, web
from aiohttp.typedefs import Handler

from rlboost_jax.credentials import COPY_AGAIN, ENVIRONMENT, bears
from rlboost_jax.environments import frames
from rlboost_jax.environments.live import LineLike
from rlboost_jax.environments.observations import BadObservation, checked_observation
from rlboost_jax.manager.limits import ALLOWANCE, Callers, Meter
from rlboost_jax.manager.service import authority
from rlboost_jax.manager.service.addresses import names
from rlboost_jax.manager.service.authorization import certified_role
from rlboost_jax.manager.service.gate import (
    HANDSHAKE_SECONDS,
    KEEP_ALIVE_SECONDS,
    NEWCOMER_SECONDS,
    RUNNER_OPTIONS,
    Gate,
)
from rlboost_jax.manager.service.listener_limits import ListenerLimits
from rlboost_jax.manager.service.peer import Unsent
from rlboost_jax.manager.service.run_files import token_of
from rlboost_jax.rewards.frames import MAX_FRAME_BYTES, frame

FOLDER: Final = "environment_hosts"  # of a run's folder
JOIN: Final = "join"  # in it: what a host needs
ROUTE: Final = "/environment"
HEARTBEAT_SECONDS: Final = 10.0  # a host that has answered no ping for half of that is gone
READY_SECONDS: Final = 180.0  # for the imports of a user's module, and a token before
MAX_HOSTS: Final = 1_024  # workers on other hosts
QUEUE_BYTES: Final = 2 * MAX_FRAME_BYTES  # for a worker that does not read
LIMITS: Final = ListenerLimits(
    name="environments' port",
    connections=MAX_HOSTS,
    credential_connections=MAX_HOSTS,  # all hosts show the same one
    newcomers=64,
    newcomer_seconds=NEWCOMER_SECONDS,
    handshake_seconds=HANDSHAKE_SECONDS,
    idle_seconds=KEEP_ALIVE_SECONDS,
    message_bytes=MAX_FRAME_BYTES,
    credential_bytes=8 * MAX_FRAME_BYTES,  # of frames that workers have not finished
    total_bytes=8 * MAX_FRAME_BYTES,
    unsent_bytes=8 * MAX_FRAME_BYTES,
)

# What is made of a worker that is there: how to reach it. What it says is heard from then on.
Take = Callable[["RemoteWorker"], None]


class RemoteWorker:
    """A worker of another host, from `Ready` on: a process and the line to it."""

    pid = 0  # of no child of ours

    def __init__(
        self,
        socket: web.WebSocketResponse,
        address: str,
        unsent: Unsent,
        heard_all: Callable[[int], None],
    ) -> None:
        self._socket, self.address, self._heard_all = socket, address, heard_all
        self._hear: Callable[[frames.FromWorker], None] = lambda message: None
        self._over: Callable[[str, bool], None] = lambda why, outside: None
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._queued, self._unsent = 0, unsent
        self.closed = asyncio.Event()

    def connect(
        self, hear: Callable[[frames.FromWorker], None], over: Callable[[str, bool], None]
    ) -> LineLike:
        """See `live.Connect`."""
        self._hear, self._over = hear, over
        return self

    def say(self, message: frames.ToWorker) -> None:
        """Raises Unsendable."""
        data = frame(message)[4:]  # a message has its own length
        if self.closed.is_set():
            return
        self._queued += len(data)
        self._outgoing.put_nowait(data)
        self._unsent.add(self, len(data))
        if self._queued > QUEUE_BYTES:
            self.drop(f"does not read: over {QUEUE_BYTES} bytes wait for it")

    @property
    def queued(self) -> int:
        """Bytes that wait for it."""
        return self._queued

    def drop(self, reason: str) -> None:
        """End it, and say so in a moment: what it did not read is still being said."""
        if self.closed.is_set():
            return
        self.close()
        why = f"the environment host at {self.address} {reason}"
        asyncio.get_running_loop().call_soon(self._over, why, True)
        self._outgoing = asyncio.Queue()
        self._shrink(self._queued)

    def _shrink(self, size: int) -> None:
        self._queued -= size
        self._unsent.remove(self, size)

    def close(self) -> None:
        """Nothing more is received, and the host ends the process."""
        self.closed.set()

    def kill(self) -> None:
        self.close()

    async def ended(self) -> None:
        """It is that host's to wait for."""

    async def talk(self) -> None:
        """Until either side ends it; `over` has heard why, if it was not `close`."""
        why, outside = f"the environment host at {self.address} is gone", True
        listening = asyncio.create_task(self._listen())
        sending = asyncio.create_task(self._send())
        closing = asyncio.create_task(self.closed.wait())
        tasks = {listening, sending, closing}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not listening.cancelled() and listening.exception() is None:
            why, outside = listening.result() or (why, outside)
        if not self.closed.is_set():
            self.closed.set()
            self._over(why, outside)
        self._shrink(self._queued)

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                data = await self._outgoing.get()
                await self._socket.send_bytes(data)
                self._shrink(min(self._queued, len(data)))

    async def _listen(self) -> tuple[str, bool] | None:
        """Why it is over and whether somebody ended it; None: nobody has said."""
        meter = Meter(0, ALLOWANCE)
        while (received := await receive(self._socket, self._heard_all)).type is WSMsgType.BINARY:
            if objection := meter.objection(len(received.data), time.monotonic()):
                return f"the environment host at {self.address} sends {objection}", False
            try:
                message = checked(received.data)
            except (msgspec.MsgspecError, BadObservation, ValueError) as error:
                return f"the environment host at {self.address} said what is no answer: {error}", (
                    False
                )
            if isinstance(message, frames.Ended):
                return f"{message.why} (at {self.address})", message.outside
            self._hear(message)
        return None


async def receive(socket: web.WebSocketResponse, heard_all: Callable[[int], None]) -> WSMessage:
    """The next frame that is not a ping or the answer to one.

    Args:
        heard_all: called with the bytes of each frame.
    """
    while True:
        received = await socket.receive()
        heard_all(len(received.data) if isinstance(received.data, bytes | str) else 0)
        if received.type is WSMsgType.PING:
            await socket.pong(received.data)
        elif received.type is not WSMsgType.PONG:
            return received


def checked(data: bytes) -> frames.FromWorker:
    """A frame of another host. Nothing in it is believed unchecked.

    Raises:
        MsgspecError, BadObservation, ValueError: it is none that may come from a worker that is
            ready.
    """
    message = frames.decode_from_worker(data)
    if isinstance(message, frames.Ready):
        raise ValueError("it is ready twice")
    if isinstance(message, frames.Opened):
        checked_observation(message.said.observation, first=True)
    elif isinstance(message, frames.Taken):
        checked_observation(message.said.observation, first=message.anew)
    return message


class Listener:
    """Where hosts of environments come to.

    Args:
        folder: of what opens it; see the head of this file.
        setup: what a worker needs to know of the run.
        take: is given each worker that is ready.
        note: called for hosts that cannot use the environment, once for each reason.
    """

    def __init__(
        self,
        folder: Path,
        setup: frames.Setup,
        *,
        take: Take,
        note: Callable[[str], None],
    ) -> None:
        self._folder, self._setup, self._take, self._note = folder, setup, take, note
        self._callers, self._reported = Callers(ALLOWANCE), set[str]()
        self._gate, self._unsent = Gate(LIMITS), Unsent(LIMITS.unsent_bytes)
        self._streams: set[RemoteWorker] = set()
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Raises OSError: the address cannot be had, or no secrets be kept."""
        join, own = self._folder / JOIN, self._folder / "authority"
        now = datetime.datetime.now(datetime.UTC)
        authorized = authority.prepare_listener(own, names(host), now)
        authority.prepare_client(authorized, join, ENVIRONMENT, now)
        self._token = token_of(join)
        app = web.Application(middlewares=[self._guard(self._gate)])
        app.router.add_get(ROUTE, self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.5, **RUNNER_OPTIONS)
        await self._runner.setup()
        assert self._runner.server is not None
        tls = authority.server_tls(own)
        self._server = await self._gate.listen(self._runner.server, host, port, tls)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for stream in list(self._streams):
            stream.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _guard(self, gate: Gate):  # type: ignore[no-untyped-def]
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not bears(request.headers, self._token):
                raise web.HTTPUnauthorized(text=f"wrong token; {COPY_AGAIN}\n")
            if certified_role(request) != ENVIRONMENT:
                raise web.HTTPForbidden(text="this token belongs to another certificate\n")
            if not self._callers.admit(request.remote or "", time.monotonic()):
                raise web.HTTPTooManyRequests(text="too many streams from this address\n")
            gate.admit(request.protocol, ENVIRONMENT)
            return await handler(request)

        return guard

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        """One worker, for as long as it is there."""
        socket = web.WebSocketResponse(
            max_msg_size=MAX_FRAME_BYTES,
            compress=False,
            heartbeat=HEARTBEAT_SECONDS,
            autoping=False,
        )
        await socket.prepare(request)
        self._gate.count_frames(request.protocol)
        heard_all = partial(self._gate.heard, request.protocol)
        worker = RemoteWorker(socket, request.remote or "nowhere", self._unsent, heard_all)
        self._streams.add(worker)
        try:
            await socket.send_bytes(frame(self._setup)[4:])
            ready = await self._ready(socket, heard_all)
            if ready is not None and ready.mistake:
                self._say_once(f"environment host at {worker.address}: {ready.mistake}")
            elif ready is not None and not worker.closed.is_set():
                self._take(worker)
                await worker.talk()
        except (ConnectionError, TimeoutError):
            pass  # it comes again, if it is still there
        finally:
            self._streams.discard(worker)
            await socket.close()
        return socket

    async def _ready(
        self, socket: web.WebSocketResponse, heard_all: Callable[[int], None]
    ) -> frames.Ready | None:
        async with asyncio.timeout(READY_SECONDS):
            received = await receive(socket, heard_all)
        if received.type is not WSMsgType.BINARY:
            return None
        try:
            message = frames.decode_from_worker(received.data)
        except msgspec.MsgspecError as error:
            self._say_once(
                f"an environment host speaks otherwise ({error}); is it of this release?"
            )
            return None
        return message if isinstance(message, frames.Ready) else None

    def _say_once(self, line: str) -> None:
        if line not in self._reported and len(self._reported) < 100:
            self._reported.add(line)
            self._note(line)
