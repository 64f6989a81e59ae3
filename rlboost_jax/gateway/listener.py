"""Listener for the harnesses of one environment process: one socket for all of its episodes.

Programs that this process starts come by loopback, without TLS: each holds the token of one
session, and nothing else is to be had there. Clients from outside come to a port of their own with
the gateway's token, by TLS unless they are on this host.
"""

import asyncio
import contextlib
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlboost_jax.gateway import gateway_certificate
from rlboost_jax.gateway.backend import Model
from rlboost_jax.gateway.gateway_limits import GatewayLimits
from rlboost_jax.gateway.harness_channel import Channels
from rlboost_jax.gateway.serving import is_loopback, listening
from rlboost_jax.gateway.sessions import Sessions
from rlboost_jax.trust.addresses import names
from rlboost_jax.trust.run_files import token_of
from rlboost_jax.weights.file_server.file_server_process import listening_socket

# A run is in no hurry: a turn waits while the learner is busy. A harness that gives up waiting and
# asks again gets the same turn.
LIMITS: Final = GatewayLimits(
    max_sessions=8192,
    turn_seconds=7 * 86_400.0,
    idle_seconds=7 * 86_400.0,
    concurrent="refuse",
    held_bytes=2**30,  # the conversations of all that wait for a learner
)


@dataclass(eq=False)
class HarnessListener:
    url: str
    channels: Channels
    sessions: Sessions
    _open: contextlib.AsyncExitStack

    async def forget(self, session: str) -> None:
        """Remove the session of an episode that is over."""
        with contextlib.suppress(Exception):  # it ended itself
            await self.sessions.end(self.sessions.find(session), "its episode is over")


_listeners: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Any]]"
_listeners = weakref.WeakKeyDictionary()


async def listener_of(
    host: str, port: int, folder: str, *, model: str, outside: bool, hosts: tuple[str, ...] = ()
) -> HarnessListener:
    """Listener of this event loop; it listens from the first call on.

    Args:
        outside: clients come by themselves, with the gateway's own token.
        hosts: names by which they may ask, beside those of this host.

    Raises:
        OSError: the address cannot be had. With a port of its own, environment.workers must be 1.
    """
    here = _listeners.setdefault(asyncio.get_running_loop(), {})
    key = host, port, folder, model, outside, hosts
    if key not in here:
        here[key] = asyncio.ensure_future(_listener(host, port, folder, model, outside, hosts))
    listener: HarnessListener = await asyncio.shield(here[key])
    return listener


async def _listener(
    host: str, port: int, folder: str, model: str, outside: bool, hosts: tuple[str, ...]
) -> HarnessListener:
    channels = Channels(Model(name=model, max_tokens=0, any_name=True, own_sampling=True))
    sessions = Sessions(channels, LIMITS)
    opened = contextlib.AsyncExitStack()
    if not outside:
        socket = listening_socket("127.0.0.1", 0)
        await opened.enter_async_context(listening(sessions, socket, token=None))
        return HarnessListener(
            f"http://127.0.0.1:{socket.getsockname()[1]}", channels, sessions, opened
        )
    try:
        socket = listening_socket(host, port)
    except OSError as error:
        raise OSError(
            f"cannot listen at {host}:{port} (environment.options): {error.strerror or error}; "
            "with a port of its own, environment.workers must be 1 and isolation 'shared'"
        ) from None
    place = Path(folder).absolute()
    token = token_of(place)
    plain, hosts = is_loopback(host), (*names(host), *hosts)
    tls = None if plain else gateway_certificate.prepare(place, place / "authority", hosts)
    await opened.enter_async_context(listening(sessions, socket, token=token, tls=tls, hosts=hosts))
    scheme = "http" if plain else "https"
    return HarnessListener(
        f"{scheme}://{host}:{socket.getsockname()[1]}", channels, sessions, opened
    )
