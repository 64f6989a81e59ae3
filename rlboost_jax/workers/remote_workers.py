"""Workers on hosts of their own: they dial the trainer, each by a connection of its own.

A host shows the token and the certificate of the folder `join` (for environments
`<workdir>/environment_hosts/join`), which open nothing else, and gets what it needs to know of the
run. From then on a worker there is like one here, and what ends the connection ends it: its
sessions are begun again elsewhere.
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

from rlboost_jax.manager.service.peer import Unsent
from rlboost_jax.platform.frames import MAX_BODY_BYTES, body_of
from rlboost_jax.trust import authority
from rlboost_jax.trust.addresses import names
from rlboost_jax.trust.authorization import certified_role
from rlboost_jax.trust.credentials import COPY_AGAIN, bears
from rlboost_jax.trust.gate import (
    HANDSHAKE_SECONDS,
    KEEP_ALIVE_SECONDS,
    NEWCOMER_SECONDS,
    RUNNER_OPTIONS,
    Gate,
)
from rlboost_jax.trust.listener_limits import ListenerLimits
from rlboost_jax.trust.peer_limits import ALLOWANCE, Callers, Meter
from rlboost_jax.trust.run_files import token_of
from rlboost_jax.workers.worker_kind import RemoteProtocol, WorkerEnded, WorkerKind, WorkerReady
from rlboost_jax.workers.worker_sessions import LineLike

JOIN: Final = "join"  # in the folder of what opens the listener: what a host needs
HEARTBEAT_SECONDS: Final = 10.0  # a host that has answered no ping for half of that is gone
READY_SECONDS: Final = 180.0  # for the imports of a user's module, and a token before
MAX_HOSTS: Final = 1_024  # workers on other hosts
QUEUE_BYTES: Final = 2 * MAX_BODY_BYTES  # for a worker that does not read
LIMITS: Final = ListenerLimits(
    name="environments' port",
    connections=MAX_HOSTS,
    credential_connections=MAX_HOSTS,  # all hosts show the same one
    newcomers=64,
    newcomer_seconds=NEWCOMER_SECONDS,
    handshake_seconds=HANDSHAKE_SECONDS,
    idle_seconds=KEEP_ALIVE_SECONDS,
    message_bytes=MAX_BODY_BYTES,
    credential_bytes=8 * MAX_BODY_BYTES,  # of frames that workers have not finished
    total_bytes=8 * MAX_BODY_BYTES,
    unsent_bytes=8 * MAX_BODY_BYTES,
)

# What is made of a worker that is there: how to reach it. What it says is heard from then on.
Take = Callable[["RemoteWorker"], None]


class RemoteWorker:
    """A worker of another host, from `Ready` on: its process and its connection."""

    pid = 0  # of no child of ours

    def __init__(
        self,
        socket: web.WebSocketResponse,
        address: str,
        kind: WorkerKind,
        remote: RemoteProtocol,
        unsent: Unsent,
        heard_all: Callable[[int], None],
    ) -> None:
        self._socket, self.address, self._heard_all = socket, address, heard_all
        self._kind, self._remote = kind, remote
        self._host = f"the {remote.host} at {address}"
        self._hear: Callable[[msgspec.Struct], None] = lambda message: None
        self._over: Callable[[str, bool], None] = lambda why, outside: None
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._queued, self._unsent = 0, unsent
        self.closed = asyncio.Event()

    def connect(
        self,
        hear: Callable[[msgspec.Struct], None],
        over: Callable[[str, bool], None],
    ) -> LineLike:
        """Start to receive frames, see `worker_sessions.Connect`."""
        self._hear, self._over = hear, over
        return self

    def say(self, message: msgspec.Struct) -> None:
        """Send a frame. Raises Unsendable."""
        data = body_of(message)
        if self.closed.is_set():
            return
        self._queued += len(data)
        self._outgoing.put_nowait(data)
        self._unsent.add(self, len(data))
        if self._queued > QUEUE_BYTES:
            self.drop(f"does not read: over {QUEUE_BYTES} bytes wait for it")

    @property
    def queued(self) -> int:
        """Bytes of unsent frames."""
        return self._queued

    def drop(self, reason: str) -> None:
        """End the worker, and report it in a moment: unread frames are still being sent."""
        if self.closed.is_set():
            return
        self.close()
        why = f"{self._host} {reason}"
        asyncio.get_running_loop().call_soon(self._over, why, True)
        self._outgoing = asyncio.Queue()
        self._shrink(self._queued)

    def _shrink(self, size: int) -> None:
        self._queued -= size
        self._unsent.remove(self, size)

    def close(self) -> None:
        """Stop receiving; the host ends the process."""
        self.closed.set()

    def stop(self) -> None:
        self.close()

    async def ended(self) -> None:
        """Return at once: the process is the other host's to wait for."""

    async def talk(self) -> None:
        """Exchange frames until either side ends; `over` gets the reason unless it was `close`."""
        why, outside = f"{self._host} is gone", True
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
        """Receive frames; returns why it is over and whether somebody ended it, None if unknown."""
        meter = Meter(0, ALLOWANCE)
        while (received := await receive(self._socket, self._heard_all)).type is WSMsgType.BINARY:
            if objection := meter.objection(len(received.data), time.monotonic()):
                return f"{self._host} sends {objection}", False
            try:
                message = self._checked(received.data)
            except (msgspec.MsgspecError, ValueError) as error:
                return f"{self._host} said what is no answer: {error}", False
            if isinstance(message, WorkerEnded):
                return f"{message.why} (at {self.address})", message.outside
            self._hear(message)
        return None

    def _checked(self, data: bytes) -> msgspec.Struct:
        """Decode and check a frame.

        Raises:
            MsgspecError, ValueError: no worker that is ready sends it.
        """
        message = self._kind.decode(data)
        if isinstance(message, WorkerReady):
            raise ValueError("it is ready twice")
        self._remote.check(message)
        return message


async def receive(socket: web.WebSocketResponse, heard_all: Callable[[int], None]) -> WSMessage:
    """Wait for the next frame other than a ping or pong.

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


class WorkerListener:
    """Listener for workers of other hosts.

    Args:
        folder: of what opens it; see the head of this file.
        take: is given each worker that is ready.
        note: called for hosts that cannot use what a worker imports, once for each reason.
    """

    def __init__(
        self,
        folder: Path,
        kind: WorkerKind,
        remote: RemoteProtocol,
        *,
        take: Take,
        note: Callable[[str], None],
    ) -> None:
        self._folder, self._take, self._note = folder, take, note
        self._kind, self._remote = kind, remote
        self._callers, self._reported = Callers(ALLOWANCE), set[str]()
        self._gate, self._unsent = Gate(LIMITS), Unsent(LIMITS.unsent_bytes)
        self._streams: set[RemoteWorker] = set()
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Start to listen.

        Raises OSError if the address is not available or secrets cannot be kept.
        """
        join, own = self._folder / JOIN, self._folder / "authority"
        now = datetime.datetime.now(datetime.UTC)
        authorized = authority.prepare_listener(own, names(host), now)
        authority.prepare_client(authorized, join, self._remote.role, now)
        self._token = token_of(join)
        app = web.Application(middlewares=[self._guard(self._gate)])
        app.router.add_get(self._remote.route, self._serve)
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
            if certified_role(request) != self._remote.role:
                raise web.HTTPForbidden(text="this token belongs to another certificate\n")
            if not self._callers.admit(request.remote or "", time.monotonic()):
                raise web.HTTPTooManyRequests(text="too many streams from this address\n")
            gate.admit(request.protocol, self._remote.role)
            return await handler(request)

        return guard

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one worker while it is connected."""
        socket = web.WebSocketResponse(
            max_msg_size=MAX_BODY_BYTES,
            compress=False,
            heartbeat=HEARTBEAT_SECONDS,
            autoping=False,
        )
        await socket.prepare(request)
        self._gate.count_frames(request.protocol)
        heard_all = partial(self._gate.heard, request.protocol)
        worker = RemoteWorker(
            socket,
            request.remote or "nowhere",
            self._kind,
            self._remote,
            self._unsent,
            heard_all,
        )
        self._streams.add(worker)
        try:
            await socket.send_bytes(body_of(self._remote.setup))
            ready = await self._ready(socket, heard_all)
            if ready is not None and ready.mistake:
                self._say_once(f"{self._remote.host} at {worker.address}: {ready.mistake}")
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
    ) -> WorkerReady | None:
        async with asyncio.timeout(READY_SECONDS):
            received = await receive(socket, heard_all)
        if received.type is not WSMsgType.BINARY:
            return None
        try:
            message = self._kind.decode(received.data)
        except msgspec.MsgspecError as error:
            self._say_once(
                f"a frame of an {self._remote.host} is invalid ({error}); is it of this release?"
            )
            return None
        return message if isinstance(message, WorkerReady) else None

    def _say_once(self, line: str) -> None:
        if line not in self._reported and len(self._reported) < 100:
            self._reported.add(line)
            self._note(line)
