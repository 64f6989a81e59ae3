"""Authorization of requests: a bearer token, and the certificate that it belongs to.

There are two tokens, the servers' and the trainer's. The manager and its file server ask for
the same.
"""

from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from rlboost_jax.trust.credentials import COPY_AGAIN, SERVER, TRAINER, bears
from rlboost_jax.trust.listener_limits import OWNER
from rlboost_jax.trust.run_files import Tokens

TOKENS: web.AppKey[Tokens] = web.AppKey("tokens", Tokens)
ADMIT: web.AppKey[Callable[[Any, str], None]] = web.AppKey("admit", Callable)  # type: ignore[arg-type]


def guarded(tokens: Tokens, admit: Callable[[Any, str], None]) -> web.Application:
    """Build an application in which every route requires a token.

    Args:
        admit: called with each connection that has shown one, and whose it is: the trainer owns
            the listener, and all servers have one and the same.
    """
    app = web.Application(middlewares=[_authorize])
    app[TOKENS] = tokens
    app[ADMIT] = admit
    return app


@web.middleware
async def _authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
    tokens = request.app[TOKENS]
    trainer = bears(request.headers, tokens.trainer)
    if not (trainer or bears(request.headers, tokens.server)):
        raise web.HTTPUnauthorized(text=f"wrong token; {COPY_AGAIN}\n")
    role = certified_role(request)
    if role is not None and role != (TRAINER if trainer else SERVER):
        raise web.HTTPForbidden(text="this token belongs to another certificate\n")
    request.app[ADMIT](request.protocol, OWNER if trainer else SERVER)
    return await handler(request)


def certified_role(request: web.Request) -> str | None:
    """Common name of the client's certificate; None without TLS."""
    certificate = request.get_extra_info("peercert")
    if certificate is None:
        return None
    subject = dict(pair for part in certificate["subject"] for pair in part)
    return str(subject.get("commonName", ""))
