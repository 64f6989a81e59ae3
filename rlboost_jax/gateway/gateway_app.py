"""The gateway's application: decode, ask, encode.

GET    /v1/models                 what is served; /v1/models/{name}, too
POST   /v1/chat/completions       a turn, as OpenAI's protocol has it
POST   /inference/v1/generate     a turn, token ids in and out, as verifiers has it
POST   /sessions                  open a session; its answer has the token
GET    /sessions/{id}             how far it is
POST   /sessions/{id}/reward      what the episode was worth
DELETE /sessions/{id}             it is over

A session's token opens that session. The gateway's own opens all: a call with it belongs to the
session that the header X-Session-ID names, or is a session by itself.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from rlboost_jax.gateway.api_errors import ApiError, invalid, unauthorized
from rlboost_jax.gateway.client_calls import Call, chat_call, reward_of, token_call
from rlboost_jax.gateway.gateway_limits import MAX_BODY_BYTES, MAX_KEY, listener_limits
from rlboost_jax.gateway.progress import TurnProgress
from rlboost_jax.gateway.request_bodies import read_object
from rlboost_jax.gateway.response_bodies import ChatAnswer, encoded, generated, models
from rlboost_jax.gateway.sessions import OpenSession, Sessions
from rlboost_jax.gateway.unread import unread
from rlboost_jax.trust.browser_hosts import check_host
from rlboost_jax.trust.bytes_in_flight import (
    BytesInFlight,
    HeldBytes,
    send_part,
    send_whole,
    taken_in_time,
)
from rlboost_jax.trust.credentials import bearer_of, bears
from rlboost_jax.trust.gate import RETRY_AFTER
from rlboost_jax.trust.listener_limits import OWNER

log: Final = logging.getLogger(__name__)

SESSION_HEADER: Final = "X-Session-ID"
KEY_HEADER: Final = "Idempotency-Key"
HELD: Final = web.RequestKey("held", HeldBytes)
BEAT_SECONDS: Final = 10.0  # between signs of life of a stream
_SPOKEN: Final = (
    "of OpenAI's protocol there are /v1/chat/completions and /v1/models, and a client's base URL "
    "ends with /v1"
)
# Refusals of the listener, whose text names the limit.
_SAID_BY_US: Final = (
    web.HTTPMisdirectedRequest,
    web.HTTPTooManyRequests,
    web.HTTPServiceUnavailable,
)
_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,256}")


def make_app(
    sessions: Sessions,
    *,
    token: str | None,
    admit: Callable[[Any, str], None] = lambda _, credential: None,
    hosts: Collection[str] = (),
) -> web.Application:
    """Make the gateway's application.

    Args:
        token: the gateway's own; None: sessions are opened by this process alone.
        admit: called with each connection that has shown a token, and the session it opens.
        hosts: names by which clients may ask, beside those of this host.
    """
    gateway = _Gateway(sessions, token)
    flight = BytesInFlight(listener_limits(sessions.limits))
    app = web.Application(middlewares=[_errors, _guard(gateway, admit, hosts, flight)])
    app.router.add_get("/v1/models", gateway.models)
    app.router.add_get("/v1/models/{name:.+}", gateway.one_model)
    app.router.add_post("/v1/chat/completions", gateway.chat)
    app.router.add_post("/inference/v1/generate", gateway.generate)
    app.router.add_post("/sessions", gateway.open)
    app.router.add_get("/sessions/{id}", gateway.status)
    app.router.add_post("/sessions/{id}/reward", gateway.reward)
    app.router.add_delete("/sessions/{id}", gateway.end)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that reports every error in OpenAI's form."""
    try:
        return await handler(request)
    except ApiError as error:
        refused = error
    except web.HTTPException as error:
        reason = f"{request.method} {request.path[:100]}: {error.reason}"
        if isinstance(error, web.HTTPNotFound):
            reason = f"{reason}; {_SPOKEN}"
        elif isinstance(error, _SAID_BY_US):
            reason = (error.text or "").strip()
        elif isinstance(error, web.HTTPRequestEntityTooLarge):
            reason = f"the body is too large; at most {MAX_BODY_BYTES:,} bytes are taken"
        refused = ApiError(error.status, error.reason.lower().replace(" ", "_"), reason)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:  # a defect of ours: its text may hold tokens, so the client gets none of it
        log.exception("%s %s failed", request.method, request.path[:100])
        refused = ApiError(500, "internal_error", "the gateway's log says why", kind="server_error")
    response = _json(refused.body(), refused.status)
    if refused.status in (429, 503):
        response.headers.update(RETRY_AFTER)
    return response


def _guard(
    gateway: "_Gateway",
    admit: Callable[[Any, str], None],
    hosts: Collection[str],
    flight: BytesInFlight,
) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_host(request.headers.getall("Host", []), hosts, "allowed_hosts")
        session = gateway.session_of(request)
        if session is None and not gateway.owns(request):
            raise unauthorized()
        credential = OWNER if session is None else session.id
        admit(request.protocol, credential)
        with flight.held(credential) as held:
            request[HELD] = held
            response = await handler(request)
            await send_whole(request, response, held)
            return response

    return guard


class _Gateway:
    """Request handlers."""

    def __init__(self, sessions: Sessions, token: str | None) -> None:
        self.sessions, self._token = sessions, token
        self._created = int(time.time())

    def owns(self, request: web.Request) -> bool:
        """Whether the request shows the gateway's own token."""
        return self._token is not None and bears(request.headers, self._token)

    def session_of(self, request: web.Request) -> OpenSession | None:
        """Session that the request's token opens; None if it opens none."""
        return self.sessions.of_token(bearer_of(request.headers))

    async def models(self, request: web.Request) -> web.Response:
        return _json(models(self.sessions.backend.model, self._created))

    async def one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._check_model(name)
        (card,) = models(self.sessions.backend.model, self._created)["data"]
        return _json({**card, "id": name})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        call = chat_call(await read_object(request, request[HELD]))

        async def answered(session: OpenSession, progress: TurnProgress) -> web.StreamResponse:
            backend = self.sessions.backend
            answer = ChatAnswer(
                call,
                session=session.id,
                turn=progress.turn,
                model=backend.model,
                created=progress.created,
                text_of=backend.token_text,
                bytes_of=backend.token_bytes,
            )
            if call.stream:
                return await _stream(request, answer, progress)
            return _json(answer.whole(await progress.answered()))

        return await self._call(request, call, answered)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        call = token_call(await read_object(request, request[HELD]))

        async def answered(session: OpenSession, progress: TurnProgress) -> web.StreamResponse:
            done, model = await progress.answered(), self.sessions.backend.model
            return _json(generated(call, done, session=session.id, model=model))

        return await self._call(request, call, answered)

    async def open(self, request: web.Request) -> web.Response:
        if self.session_of(request) is not None:
            raise ApiError(403, "session_token", "a session's token opens no other session")
        value = await read_object(request, request[HELD], or_nothing=True)
        ignored = unread(value, ("id",))
        session = self.sessions.open(_name(value.get("id"), "id"))
        try:
            more = await self.sessions.backend.opened(session.id)
        except BaseException:  # also where the client has gone: it would count for ever
            await self.sessions.end(session, "it was not opened")
            raise
        scheme = "https" if request.secure else "http"
        said = {
            "id": session.id,
            "token": session.token,
            "base_url": f"{scheme}://{request.host}/v1",
            "model": self.sessions.backend.model.name,
        }
        return _json({**said, **more, **_noted(ignored)}, 201)

    async def status(self, request: web.Request) -> web.Response:
        session = self._named(request)
        state = session.state
        said = {"id": session.id, "turns": state.turns, "over": state.over or None}
        return _json({**said, "reward": session.reward})

    async def reward(self, request: web.Request) -> web.Response:
        """Record the episode's reward, which ends the episode."""
        session = self._named(request)
        value = await read_object(request, request[HELD])
        session.reward, session.metrics = reward_of(value)
        await self.sessions.end(session, "its reward was posted")
        ignored = unread(value, ("reward", "metrics"))
        return _json({"id": session.id, "reward": session.reward, **_noted(ignored)})

    async def end(self, request: web.Request) -> web.Response:
        session = self._named(request)
        await self.sessions.end(session, "its client ended it")
        return _json({"id": session.id, "turns": session.state.turns})

    async def _call(
        self,
        request: web.Request,
        call: Call,
        answered: Callable[[OpenSession, TurnProgress], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        self._check_model(call.model)
        session: OpenSession | None = self.session_of(request)
        name = _name(request.headers.get(SESSION_HEADER), SESSION_HEADER)
        key = request.headers.get(KEY_HEADER, "")
        if len(key) > MAX_KEY:
            raise invalid(f"{KEY_HEADER} has {len(key)} characters; at most {MAX_KEY} are taken")
        alone = session is None and not name
        if session is None:
            session = self.sessions.named(name) if name else self.sessions.open()
        try:
            return await answered(session, await self.sessions.ask(session, call, key))
        finally:
            if alone:
                await self.sessions.end(session, "it was of one call")

    def _named(self, request: web.Request) -> OpenSession:
        own: OpenSession | None = self.session_of(request)
        name = request.match_info["id"]
        if own is not None and own.id != name:
            raise ApiError(403, "session_token", "the token is another session's")
        return self.sessions.find(name)

    def _check_model(self, name: str) -> None:
        model = self.sessions.backend.model
        if name and name != model.name and not model.any_name:
            raise ApiError(
                404,
                "model_not_found",
                f"the model {name!r} does not exist; this gateway serves {model.name!r}",
                param="model",
            )


async def _stream(
    request: web.Request, answer: ChatAnswer, progress: TurnProgress
) -> web.StreamResponse:
    """Stream chunks as they come.

    The turn continues if its client disconnects, which may ask again.

    What is refused before the first chunk is an error of HTTP, as without a stream.
    """
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    )

    async def write(data: bytes) -> None:
        if not response.prepared:
            await response.prepare(request)
            await send_part(request, response, answer.first(), held)
        if data:
            await send_part(request, response, data, held)

    held = request[HELD]
    async for piece in progress.pieces(BEAT_SECONDS):
        await write(b": wait\n\n" if piece is None else answer.piece(piece))
    try:
        done = await progress.answered()
    except ApiError as error:
        if not response.prepared:
            raise
        await write(b"data: " + encoded(error.body()) + b"\n\n")
    else:
        for chunk in answer.rest(done):
            await write(chunk)
    async with taken_in_time(request):
        await response.write_eof()
    return response


def _name(value: Any, field: str) -> str:
    """Name of a session; "" if none is given."""
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise invalid(
            f"{field} must be 1 to {MAX_KEY} letters, digits, dots, colons, dashes and underlines",
            field,
        )
    return value


def _noted(ignored: tuple[str, ...]) -> dict[str, Any]:
    """Field of a response that lists the ignored fields of a call."""
    return {"ignored": list(ignored)} if ignored else {}


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=encoded(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
