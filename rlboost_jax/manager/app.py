"""The manager's routes. Each asks for a bearer token and hands frames to the driver.

There are two tokens. The servers' opens everything but what belongs to the trainer: its
route, and the place of its own engine.
"""

import hmac
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler

from rlboost_jax.manager.driver import Driver
from rlboost_jax.manager.events import FromServer, FromTrainer, ServerGone, TrainerGone
from rlboost_jax.manager.files import Tokens
from rlboost_jax.manager.peer import CLOSE_SECONDS
from rlboost_jax.messages import (
    MAX_FRAME_BYTES,
    Hello,
    Leave,
    Manifest,
    Publish,
    Refused,
    ServerMessage,
    TrainerMessage,
    decode_server,
    decode_trainer,
)
from rlboost_jax.weights.names import WeightsError, check_names

FIRST_FRAME_SECONDS = 5.0  # from the handshake to Hello

DRIVER: web.AppKey[Driver] = web.AppKey("driver", Driver)
CONFIG: web.AppKey[bytes] = web.AppKey("config", bytes)
TOKENS: web.AppKey[Tokens] = web.AppKey("tokens", Tokens)
SNAPSHOTS: web.AppKey[Path] = web.AppKey("snapshots", Path)


class NotAllowed(ValueError):
    """A frame asks for what its sender has no right to."""


def make_app(
    driver: Driver,
    *,
    tokens: Tokens,
    config: bytes,
    snapshots: Path,
    add_routes: Iterable[Callable[[web.Application], None]] = (),
) -> web.Application:
    """
    Args:
        config: the resolved configuration as JSON, for servers.
        snapshots: the folder in which all that the trainer publishes lies.
        add_routes: of other parts; they lie behind either token.
    """
    app = web.Application(middlewares=[_authorize])
    app[DRIVER] = driver
    app[CONFIG] = config
    app[TOKENS] = tokens
    app[SNAPSHOTS] = snapshots.resolve()
    app.router.add_get("/instance", serve_instance)
    app.router.add_get("/trainer", serve_trainer)
    app.router.add_get("/config", get_config)
    app.router.add_get("/status", get_status)
    for add in add_routes:
        add(app)
    return app


async def serve_instance(request: web.Request) -> web.WebSocketResponse:
    """Talk to one rollout server for as long as its stream lasts."""
    from_trainer = _bears(request, request.app[TOKENS].trainer)

    def decode(data: bytes) -> ServerMessage:
        message = decode_server(data)
        if isinstance(message, Hello) and message.reserved and not from_trainer:
            raise NotAllowed("a reserved engine needs the trainer's token; this is the servers'")
        return message

    return await _serve(request, decode, FromServer, ServerGone, Leave)


async def serve_trainer(request: web.Request) -> web.WebSocketResponse:
    """Talk to the trainer for as long as its stream lasts."""
    if not _bears(request, request.app[TOKENS].trainer):
        raise web.HTTPForbidden(text="the trainer's token is needed; this is the servers'\n")

    def decode(data: bytes) -> TrainerMessage:
        message = decode_trainer(data)
        if isinstance(message, Publish):
            _check_manifest(message.manifest, request.app[SNAPSHOTS])
        return message

    return await _serve(request, decode, FromTrainer, TrainerGone, Refused)


async def get_config(request: web.Request) -> web.Response:
    return web.Response(body=request.app[CONFIG], content_type="application/json")


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
    refusal: type[Leave] | type[Refused],
) -> web.WebSocketResponse:
    """Frames to events until the stream ends.

    However that comes about (goodbye, kill, a malformed or oversized frame), the manager
    hears of it once, and what the peer held is on its way elsewhere before this returns.

    Args:
        decode: may raise DecodeError and NotAllowed.
        refusal: tells the peer what it was not allowed.
    """
    driver = request.app[DRIVER]
    socket = web.WebSocketResponse(
        max_msg_size=MAX_FRAME_BYTES, compress=False, timeout=CLOSE_SECONDS
    )
    await socket.prepare(request)
    stream = driver.open(socket, request.transport, trainer=heard is FromTrainer)
    reason = "stream closed"
    try:
        frame = await socket.receive(timeout=FIRST_FRAME_SECONDS)
        while frame.type is WSMsgType.BINARY:
            driver.apply(heard(stream, decode(frame.data)))  # type: ignore[arg-type]
            frame = await socket.receive()
        if frame.type is WSMsgType.TEXT:
            reason = "malformed: a text frame"
        elif frame.type is WSMsgType.ERROR:
            reason = f"malformed: {frame.data}"
    except msgspec.DecodeError as error:
        reason = f"malformed: {error}"
    except NotAllowed as error:
        reason = str(error)
        driver.send(stream, refusal(reason=reason))
    except TimeoutError:
        reason = f"no Hello within {FIRST_FRAME_SECONDS:g} s"
    finally:
        driver.apply(gone(stream, reason))
        await driver.shut(stream, reason)
    return socket


def _check_manifest(manifest: Manifest, snapshots: Path) -> None:
    """Its files are read and served to other hosts: let them be snapshots.

    Raises:
        NotAllowed: a file lies elsewhere, or could.
    """
    try:
        check_names(manifest)
    except WeightsError as error:
        raise NotAllowed(str(error)) from None
    if not Path(manifest.directory).resolve().is_relative_to(snapshots):
        raise NotAllowed(
            f"manifest of version {manifest.version}: {manifest.directory!r} is not below "
            f"{snapshots}; publish what lies in the run's own work directory"
        )


@web.middleware
async def _authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
    tokens = request.app[TOKENS]
    if not (_bears(request, tokens.server) or _bears(request, tokens.trainer)):
        raise web.HTTPUnauthorized(text="wrong token; give the manager's own token file\n")
    return await handler(request)


def _bears(request: web.Request, token: str) -> bool:
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, f"Bearer {token}".encode())  # same time for any guess
