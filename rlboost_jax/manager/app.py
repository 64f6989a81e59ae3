"""The manager's routes. Each asks for the bearer token and hands frames to the driver."""

import hmac
from collections.abc import Callable, Iterable

import msgspec
from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler, Middleware

from rlboost_jax.manager.driver import Driver
from rlboost_jax.manager.events import FromServer, FromTrainer, ServerGone, TrainerGone
from rlboost_jax.manager.peer import CLOSE_SECONDS
from rlboost_jax.messages import MAX_FRAME_BYTES, decode_server, decode_trainer

FIRST_FRAME_SECONDS = 5.0  # from the handshake to Hello

DRIVER: web.AppKey[Driver] = web.AppKey("driver", Driver)
CONFIG: web.AppKey[bytes] = web.AppKey("config", bytes)


def make_app(
    driver: Driver,
    *,
    token: str,
    config: bytes,
    add_routes: Iterable[Callable[[web.Application], None]] = (),
) -> web.Application:
    """
    Args:
        config: the resolved configuration as JSON, for servers.
        add_routes: of other parts; they lie behind the same token.
    """
    app = web.Application(middlewares=[_authorized(token)])
    app[DRIVER] = driver
    app[CONFIG] = config
    app.router.add_get("/instance", serve_instance)
    app.router.add_get("/trainer", serve_trainer)
    app.router.add_get("/config", get_config)
    app.router.add_get("/status", get_status)
    for add in add_routes:
        add(app)
    return app


async def serve_instance(request: web.Request) -> web.WebSocketResponse:
    """Talk to one rollout server for as long as its stream lasts."""
    return await _serve(request, decode_server, FromServer, ServerGone)


async def serve_trainer(request: web.Request) -> web.WebSocketResponse:
    """Talk to the trainer for as long as its stream lasts."""
    return await _serve(request, decode_trainer, FromTrainer, TrainerGone)


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
) -> web.WebSocketResponse:
    """Frames to events until the stream ends.

    However that comes about (goodbye, kill, a malformed or oversized frame), the manager
    hears of it once, and what the peer held is on its way elsewhere before this returns.
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
    except TimeoutError:
        reason = f"no Hello within {FIRST_FRAME_SECONDS:g} s"
    finally:
        driver.apply(gone(stream, reason))
        await driver.shut(stream, reason)
    return socket


def _authorized(token: str) -> Middleware:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, expected):  # takes the same time for any guess
            raise web.HTTPUnauthorized(text="wrong token; give the manager's own token file\n")
        return await handler(request)

    return check
