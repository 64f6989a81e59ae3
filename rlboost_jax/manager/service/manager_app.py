"""The manager's routes. Each asks for a bearer token and hands frames to the driver.

The servers' token opens everything but what belongs to the trainer: its route, and the place of its
own engine (`authorization.py`). What a stream may send is limited (`peer_limits.py`), a server's
more than the trainer's.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import WSMessage, WSMsgType, web
from aiohttp.typedefs import Handler

from rlboost_jax.manager.events import FromServer, FromTrainer, ServerGone, TrainerGone
from rlboost_jax.manager.service.manager_driver import Driver
from rlboost_jax.manager.service.peer import CLOSE_SECONDS, SERVER_QUEUES_BYTES
from rlboost_jax.messages import (
    MAX_FRAME_BYTES,
    Hello,
    Leave,
    Manifest,
    Publish,
    RequestRefused,
    ServerMessage,
    Teach,
    TrainerMessage,
    decode_server,
    decode_trainer,
)
from rlboost_jax.trust.authorization import TOKENS, guarded
from rlboost_jax.trust.credentials import FILES_CONNECTIONS, FILES_PORT, RECOVERS, bears
from rlboost_jax.trust.gate import (
    HANDSHAKE_SECONDS,
    KEEP_ALIVE_SECONDS,
    MAX_NEWCOMERS,
    NEWCOMER_SECONDS,
    Gate,
)
from rlboost_jax.trust.listener_limits import ListenerLimits
from rlboost_jax.trust.peer_limits import (
    ALLOWANCE,
    MAX_INSTANCES,
    Allowance,
    Callers,
    Meter,
    trainer_queue_bytes,
)
from rlboost_jax.trust.run_files import Tokens
from rlboost_jax.weights.pieces import MOST_CONNECTIONS

FIRST_FRAME_SECONDS = 5.0  # from the handshake to Hello
HOLD_SECONDS = 1.0  # less than anybody waits for an answer
SERVERS_BYTES = 512 * 2**20  # of frames that servers have not finished
TRAINERS_CONNECTIONS = 64  # that no server can take

DRIVER: web.AppKey[Driver] = web.AppKey("driver", Driver)
GATE: web.AppKey[Gate] = web.AppKey("gate", Gate)
CONFIG: web.AppKey[bytes] = web.AppKey("config", bytes)
SNAPSHOTS: web.AppKey[Path] = web.AppKey("snapshots", Path)
SERVER_FRAME_BYTES: web.AppKey[int] = web.AppKey("server_frame_bytes", int)
ROUTE_BYTES: web.AppKey[int] = web.AppKey("route_bytes", int)
ALLOWED: web.AppKey[Allowance] = web.AppKey("allowance", Allowance)
CALLERS: web.AppKey[Callers] = web.AppKey("callers", Callers)
PATIENCE: web.AppKey[float] = web.AppKey("first_frame_seconds", float)
HOLD: web.AppKey[float] = web.AppKey("hold_seconds", float)
FILES: web.AppKey[dict[str, str]] = web.AppKey("files", dict)  # headers that say where they are
PROGRESS: web.AppKey[Callable[[], str]] = web.AppKey("progress", Callable)  # type: ignore[arg-type]


class TooMuch(ValueError):
    """A peer sends more than a correct one ever would."""


class NotAllowed(ValueError):
    """A frame requests what its sender has no right to."""


def manager_limits(server_frame_bytes: int, route_bytes: int = 0) -> ListenerLimits:
    """Limits of the manager's port. All servers share one credential.

    Args:
        server_frame_bytes: the longest frame taken from one.
        route_bytes: that come with each token.
    """
    servers = 2 * MAX_INSTANCES  # a stream each, and one that is not known to be dead yet
    most = max(SERVERS_BYTES, 4 * server_frame_bytes)
    return ListenerLimits(
        name="manager",
        connections=servers + TRAINERS_CONNECTIONS,
        credential_connections=servers,
        newcomers=MAX_NEWCOMERS,
        newcomer_seconds=NEWCOMER_SECONDS,
        handshake_seconds=HANDSHAKE_SECONDS,
        idle_seconds=KEEP_ALIVE_SECONDS,
        message_bytes=server_frame_bytes,
        credential_bytes=most,
        total_bytes=most + 4 * MAX_FRAME_BYTES,  # the rest is the trainer's
        unsent_bytes=SERVER_QUEUES_BYTES,
        owner_bytes=trainer_queue_bytes(route_bytes),
    )


def make_app(
    driver: Driver,
    *,
    tokens: Tokens,
    config: bytes,
    snapshots: Path,
    server_frame_bytes: int = MAX_FRAME_BYTES,
    route_bytes: int = 0,
    gate: Gate | None = None,
    allowance: Allowance = ALLOWANCE,
    first_frame_seconds: float = FIRST_FRAME_SECONDS,
    hold_seconds: float = HOLD_SECONDS,
    progress: Callable[[], str] = lambda: "",
    weights_port: int = 0,
    weights_connections: int = MOST_CONNECTIONS,
) -> web.Application:
    """Make the manager's application.

    Args:
        weights_port: where files are served; sent with the configuration.
        weights_connections: that a server may use there; sent likewise.
        config: the part of the run's settings that servers receive, as JSON.
        snapshots: the folder in which all that the trainer publishes lies.
        server_frame_bytes: the longest frame taken from a server.
        route_bytes: that come with each token of one.
        gate: of the socket it is served at; None: at one without limits, within tests.
        allowance: of a server.
        first_frame_seconds: from the handshake to Hello.
        hold_seconds: that a caller waits for a manager that reads its journal.
        progress: how far it is with that.
    """
    gate = gate or Gate(manager_limits(server_frame_bytes))
    app = guarded(tokens, gate.admit)
    app[GATE] = gate
    app.middlewares.append(_await_recovery)
    app[DRIVER] = driver
    app[CONFIG] = config
    app[SNAPSHOTS] = snapshots.resolve()
    app[SERVER_FRAME_BYTES] = server_frame_bytes
    app[ROUTE_BYTES] = route_bytes
    app[ALLOWED], app[CALLERS] = allowance, Callers(allowance)
    app[PATIENCE] = first_frame_seconds
    app[HOLD], app[PROGRESS] = hold_seconds, progress
    app[FILES] = {FILES_PORT: str(weights_port), FILES_CONNECTIONS: str(weights_connections)}
    app.router.add_get("/instance", serve_instance)
    app.router.add_get("/trainer", serve_trainer)
    app.router.add_get("/config", get_config)
    app.router.add_get("/status", get_status)
    return app


@web.middleware
async def _await_recovery(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Hold requests until the manager has read its journal, and tell peers that do not wait.

    So no peer takes a recovering manager for lost. Its configuration it can serve at once.
    """
    recovered = request.app[DRIVER].recovered
    if not recovered.is_set() and request.path != "/config":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.app[HOLD]):
                await recovered.wait()
        if not recovered.is_set():
            text = f"the manager reads its journal{request.app[PROGRESS]()}; try again\n"
            assert web.HTTPServiceUnavailable.status_code == RECOVERS
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "1"})
    return await handler(request)


async def serve_instance(request: web.Request) -> web.WebSocketResponse:
    """Talk to one rollout server for as long as its stream lasts."""
    from_trainer = bears(request.headers, request.app[TOKENS].trainer)
    callers, now = request.app[CALLERS], request.app[DRIVER].now()
    if not from_trainer and not callers.admit(request.remote or "", now):
        raise web.HTTPTooManyRequests(text="too many streams from this address; try again later\n")
    decode = partial(decode_from_server, from_trainer=from_trainer)
    bound = request.app[SERVER_FRAME_BYTES]
    meter = Meter(request.app[ROUTE_BYTES], request.app[ALLOWED])
    return await _serve(request, decode, FromServer, ServerGone, Leave, bound, meter)


async def serve_trainer(request: web.Request) -> web.WebSocketResponse:
    """Talk to the trainer for as long as its stream lasts."""
    if not bears(request.headers, request.app[TOKENS].trainer):
        raise web.HTTPForbidden(text="the trainer's token is needed; this is the servers'\n")

    decode = partial(decode_from_trainer, snapshots=request.app[SNAPSHOTS])
    return await _serve(
        request, decode, FromTrainer, TrainerGone, RequestRefused, MAX_FRAME_BYTES, None
    )


def decode_from_server(data: bytes, *, from_trainer: bool) -> ServerMessage:
    """Decode a frame of a rollout server.

    Args:
        from_trainer: the trainer's token was shown.

    Raises:
        DecodeError: it is no message of a server.
        NotAllowed: it claims to be the trainer's engine.
    """
    message = decode_server(data)
    if isinstance(message, Hello) and message.reserved and not from_trainer:
        raise NotAllowed("a reserved engine needs the trainer's token; this is the servers'")
    return message


def decode_from_trainer(data: bytes, *, snapshots: Path) -> TrainerMessage:
    """Decode a frame of the trainer. Raises DecodeError, and NotAllowed for foreign files."""
    message = decode_trainer(data)
    if isinstance(message, Publish):
        _check_manifest(message.manifest, snapshots)
    if isinstance(message, Teach):
        for manifest in message.manifests:
            _check_manifest(manifest, snapshots)
    return message


async def get_config(request: web.Request) -> web.Response:
    return web.Response(
        body=request.app[CONFIG],
        content_type="application/json",
        headers=request.app[FILES],
    )


async def get_status(request: web.Request) -> web.Response:
    driver = request.app[DRIVER]
    status = driver.manager.status(driver.now())
    body = msgspec.json.encode(msgspec.structs.asdict(status))
    return web.Response(body=body, content_type="application/json")


async def _serve(
    request: web.Request,
    decode: Callable[[bytes], object],
    heard: type[FromServer] | type[FromTrainer],
    gone: type[ServerGone] | type[TrainerGone],
    refusal: type[Leave] | type[RequestRefused],
    bound: int,
    meter: Meter | None,
) -> web.WebSocketResponse:
    """Turn the frames of a stream into events until it ends.

    However that comes about (goodbye, kill, a malformed or oversized frame), the manager
    hears of it once, and what the peer held is on its way elsewhere before this returns.

    Args:
        decode: may raise DecodeError and NotAllowed.
        refusal: tells the peer what it was not allowed.
        bound: bytes of the longest frame.
        meter: of a peer that is not trusted with as many frames as it likes.
    """
    driver, patience = request.app[DRIVER], request.app[PATIENCE]
    socket = web.WebSocketResponse(
        max_msg_size=bound, compress=False, timeout=CLOSE_SECONDS, autoping=False
    )
    await socket.prepare(request)
    heard_all = partial(request.app[GATE].heard, request.protocol)
    request.app[GATE].count_frames(request.protocol)
    stream = driver.open(socket, request.transport, trainer=heard is FromTrainer)
    reason = "stream closed"
    try:
        async with asyncio.timeout(patience):
            frame = await _receive(socket, driver, meter, heard_all)
        while frame.type is WSMsgType.BINARY:
            driver.apply(heard(stream, decode(frame.data)))  # type: ignore[arg-type]
            frame = await _receive(socket, driver, meter, heard_all)
        if frame.type is WSMsgType.TEXT:
            reason = "malformed: a text frame"
        elif frame.type is WSMsgType.ERROR:
            reason = f"malformed: {frame.data}"
    except msgspec.DecodeError as error:
        reason = f"malformed: {error}"
    except TooMuch as error:
        reason = str(error)
    except NotAllowed as error:
        reason = str(error)
        driver.send(stream, refusal(reason=reason))
    except TimeoutError:
        reason = f"no Hello within {patience:g} s"
    finally:
        driver.apply(gone(stream, reason))
        await driver.shut(stream, reason)
    return socket


async def _receive(
    socket: web.WebSocketResponse,
    driver: Driver,
    meter: Meter | None,
    heard_all: Callable[[int], None],
) -> WSMessage:
    """Wait for the next frame other than a ping or pong; those are counted, too.

    Args:
        heard_all: called with the bytes of each.

    Raises:
        TooMuch: the peer has sent more than it may.
    """
    while True:
        frame = await socket.receive()
        size = len(frame.data) if isinstance(frame.data, bytes | str) else 0
        heard_all(size)
        if meter is not None and (objection := meter.objection(size, driver.now())):
            raise TooMuch(f"sends too much: {objection}")
        if frame.type is WSMsgType.PING:
            await socket.pong(frame.data)
        elif frame.type is not WSMsgType.PONG:
            return frame


def _check_manifest(manifest: Manifest, snapshots: Path) -> None:
    """Check that the folder of a manifest is a snapshot's: it is served to other hosts.

    Raises:
        NotAllowed: it lies elsewhere, or the trainer is of another release.
    """
    if not manifest.list_sha256:
        raise NotAllowed(
            "this trainer is of a release before the manager's; start it with the manager's release"
        )
    try:
        inside = Path(manifest.directory).resolve().is_relative_to(snapshots)
    except (ValueError, OSError):  # a zero byte, a name that is too long
        inside = False
    if not inside:
        raise NotAllowed(
            f"manifest of version {manifest.version}: {manifest.directory!r} is not below "
            f"{snapshots}; publish what lies in the run's own work directory"
        )
