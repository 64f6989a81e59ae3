"""The page's application: its own files are public, the run needs the page's token.

Everything is read from the work directory; nothing can be changed, and the manager is never asked.
"""

import asyncio
import json
import os
import stat
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from rlboost_jax.observe.page import assets, prometheus
from rlboost_jax.observe.page.page_stream import Cursor, Message
from rlboost_jax.observe.page.run_view import RunView
from rlboost_jax.trust.browser_hosts import check_host
from rlboost_jax.trust.bytes_in_flight import BytesInFlight, HeldBytes, send_part, send_whole
from rlboost_jax.trust.credentials import bears
from rlboost_jax.trust.gate import HANDSHAKE_SECONDS, KEEP_ALIVE_SECONDS, NEWCOMER_SECONDS
from rlboost_jax.trust.listener_limits import OWNER, ListenerLimits

LOOK_SECONDS: Final = 0.25  # between two looks at the files, while somebody watches
BEAT_SECONDS: Final = 1.0  # between words to a page, at most
HELD: Final = web.RequestKey("held", HeldBytes)
MAX_PAGES: Final = 32  # that watch at a time
LOG_BYTES: Final = 2**16  # of the end of a log
MAX_LOGS: Final = 200
ANSWER_BYTES: Final = 64 * 2**20  # that were asked for and are not taken yet, of all pages
LIMITS: Final = ListenerLimits(
    name="page",
    connections=256,  # of each page that watches, as many as a browser opens
    credential_connections=256,
    newcomers=64,
    newcomer_seconds=NEWCOMER_SECONDS,
    handshake_seconds=HANDSHAKE_SECONDS,
    idle_seconds=KEEP_ALIVE_SECONDS,
    message_bytes=0,
    credential_bytes=ANSWER_BYTES,
    total_bytes=ANSWER_BYTES,
)

HEADERS: Final = {
    "Content-Security-Policy": assets.POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def make_app(
    workdir: Path,
    *,
    token: str | None,
    admit: Callable[[Any], None] = lambda _: None,
    hosts: Collection[str] = (),
) -> web.Application:
    """Make the page's application.

    Args:
        token: None: it is open to all who reach it, as at a socket that only its owner can open;
            then only localhost is meant.
        admit: called for each connection that has shown what it needs.
        hosts: names by which a browser may ask, beside those of this host.
    """
    app = web.Application(middlewares=[_guard(token, admit, hosts)])
    page = _Page(workdir)
    app.router.add_get("/", _page_file("page.html", "text/html"))
    for name, kind in assets.SERVED.items():
        app.router.add_get(f"/static/{name}", _page_file(name, kind))
    app.router.add_get("/data/events", page.events)
    app.router.add_get("/data/samples", page.samples)
    app.router.add_get(r"/data/samples/{id:\d+-\d+}", page.group)
    app.router.add_get("/data/log", page.log)
    app.router.add_get("/metrics", page.metrics)
    app.on_shutdown.append(page.close)
    return app


def _guard(token: str | None, admit: Callable[[Any], None], hosts: Collection[str]) -> Any:
    """Middleware that adds security headers, and requires the token for data of the run."""
    allowed = hosts if token is not None else None
    flight = BytesInFlight(LIMITS)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        open_to_all = request.path == "/" or request.path.startswith("/static/")
        try:
            check_host(request.headers.getall("Host", []), allowed, "observe.page.allowed_hosts")
            if token is not None and not open_to_all and not bears(request.headers, token):
                raise web.HTTPUnauthorized(text="wrong token; open the address in page/url again\n")
            if token is None or not open_to_all:
                admit(request.protocol)
            with flight.held(OWNER) as held:
                request[HELD] = held
                response = await handler(request)
                if not response.prepared:
                    response.headers.update(HEADERS)
                await send_whole(request, response, held)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        return response

    return guard


def _page_file(name: str, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    text = assets.asset(name)

    async def serve(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind, charset="utf-8")

    return serve


class _Page:
    """Request handlers. Files are read in threads, once for all pages."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._view = RunView(workdir)
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        self._pages: set[asyncio.Task[Any]] = set()

    async def close(self, app: web.Application) -> None:
        for task in tuple(self._pages):
            task.cancel()
        self._view.__exit__(None, None, None)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Stream all data, then what is new, until the browser disconnects."""
        if len(self._pages) >= MAX_PAGES:
            raise web.HTTPServiceUnavailable(text=f"{MAX_PAGES} pages watch already\n")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._pages.add(task)
        try:
            await self._tell(request, response, Cursor(self._workdir.name))
        except ConnectionError:
            pass  # it has gone, or takes nothing
        except web.HTTPTooManyRequests:  # said too late: an answer has begun
            if request.transport is not None:
                request.transport.abort()  # its browser asks again
        finally:
            self._pages.discard(task)
        return response

    async def samples(self, request: web.Request) -> web.Response:
        words = request.query.get("words", "")[:200]
        return await self._json(lambda: self._view.samples.entries(words))

    async def group(self, request: web.Request) -> web.Response:
        return await self._json(lambda: self._view.samples.group(request.match_info["id"]))

    async def log(self, request: web.Request) -> web.Response:
        """Return the end of one of the run's logs, and the list of logs."""
        return await self._json(lambda: log_end(self._workdir / "logs", request.query.get("name")))

    async def metrics(self, request: web.Request) -> web.Response:
        await self._look()
        name = self._workdir.name
        async with self._looking:
            text = await asyncio.to_thread(prometheus.metrics_text, self._view, name=name)
        return web.Response(body=text.encode(), headers={"Content-Type": prometheus.CONTENT_TYPE})

    async def _tell(
        self, request: web.Request, response: web.StreamResponse, cursor: Cursor
    ) -> None:
        loop = asyncio.get_running_loop()
        said = float("-inf")
        while True:
            await self._look()
            async with self._looking:
                messages = await asyncio.to_thread(lambda: list(cursor.messages(self._view)))
                if not messages and loop.time() - said >= BEAT_SECONDS:
                    messages = [("now", self._view.now())]
            for message in messages:
                said = loop.time()
                await send_part(request, response, frame(message), request[HELD])
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        """Read the run's files once for all pages."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if loop.time() - self._looked >= LOOK_SECONDS / 2:
                await asyncio.to_thread(self._view.poll)
                self._looked = loop.time()

    async def _json(self, read: Callable[[], Any]) -> web.Response:
        async with self._looking:
            value = await asyncio.to_thread(read)
        if value is None:
            raise web.HTTPNotFound(text="there is no such thing\n")
        return web.Response(body=_encoded(value), content_type="application/json")


def frame(message: Message) -> bytes:
    """Encode a server-sent event. JSON has no line break within it."""
    name, value = message
    return b"event: " + name.encode() + b"\ndata: " + _encoded(value) + b"\n\n"


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()  # in ASCII: half a pair is escaped


def log_end(folder: Path, name: str | None) -> dict[str, Any]:
    """List the logs of a run, newest first, with the end of one of them."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".log") and entry.is_file(follow_symlinks=False):
                    found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
    except OSError:
        pass
    names = [each for _, each in sorted(found, reverse=True)[:MAX_LOGS]]
    names.sort(key=lambda each: each != "manager.log")
    chosen = name if name in names else next(iter(names), "")
    return {"names": names, "name": chosen, "text": _end_of(folder / chosen) if chosen else ""}


def _end_of(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        text = file.read(LOG_BYTES).decode("utf-8", "replace")
    return text if size <= LOG_BYTES else text.partition("\n")[2]
