"""A gateway at its port: sockets, certificates, signals."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from rlboost_jax.gateway import gateway_certificate
from rlboost_jax.gateway.backend import Backend
from rlboost_jax.gateway.gateway_app import make_app
from rlboost_jax.gateway.gateway_limits import GatewayLimits, listener_limits
from rlboost_jax.gateway.sessions import Sessions
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.private_paths import own_folder
from rlboost_jax.settings.page_config import host_mistakes
from rlboost_jax.trust.addresses import for_other_hosts, names
from rlboost_jax.trust.gate import RUNNER_OPTIONS, Gate
from rlboost_jax.trust.run_files import token_of
from rlboost_jax.weights.file_server.file_server_process import listening_socket

_LOOK_SECONDS: Final = 10.0  # for idle sessions, at most


@dataclass(frozen=True, kw_only=True)
class ListenAddress:
    """Address and folders of a gateway.

    Attributes:
        folder: for its token and certificate.
        authorities: folder of the authority that certifies it.
        plain: without TLS.
        allowed_hosts: names by which clients may ask, beside those of this host.
    """

    host: str
    port: int
    folder: Path
    authorities: Path
    plain: bool = False
    allowed_hosts: tuple[str, ...] = ()

    def check(self) -> None:
        """Validate the settings. Raises ConfigError."""
        if self.plain and not is_loopback(self.host):
            raise ConfigError(
                f"--plain with --host={self.host}: tokens would cross the network as they are; "
                "leave --plain out, or listen on 127.0.0.1"
            )
        for mistake in host_mistakes(self.allowed_hosts, "--allowed_hosts"):
            raise ConfigError(mistake)


async def serve(
    backend: Backend, limits: GatewayLimits, place: ListenAddress, *, say: Callable[[str], None]
) -> None:
    """Serve until this process is asked to end.

    Raises:
        ConfigError, OSError: nobody can listen there, or keep secrets.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    listener = listening_socket(place.host, place.port)
    own_folder(place.folder, "--folder")
    token = token_of(place.folder)
    hosts = (*names(place.host), *place.allowed_hosts)
    tls = None
    if not place.plain:
        tls = gateway_certificate.prepare(place.folder, place.authorities, hosts)
    port = listener.getsockname()[1]
    async with listening(Sessions(backend, limits), listener, token=token, tls=tls, hosts=hosts):
        scheme = "http" if place.plain else "https"
        address = (
            f"{place.host}:{port}" if is_loopback(place.host) else for_other_hosts(place.host, port)
        )
        say(
            f"serving {backend.model.name} at {scheme}://{address}/v1; its token is in "
            f"{place.folder / 'token'}"
            + ("" if place.plain else f", its authority is {place.folder / 'ca.pem'}")
        )
        await stop.wait()


@contextlib.asynccontextmanager
async def listening(  # type: ignore[no-untyped-def]
    sessions: Sessions,
    listener: socket.socket,
    *,
    token: str | None,
    tls=None,
    hosts: Collection[str] = (),
):
    """Serve at a socket while the context lasts."""
    gate = Gate(listener_limits(sessions.limits))
    app = make_app(sessions, token=token, admit=gate.admit, hosts=hosts)
    runner = web.AppRunner(app, shutdown_timeout=0.5, **RUNNER_OPTIONS)
    await runner.setup()
    assert runner.server is not None
    server = await gate.listen_on(runner.server, listener, tls)
    ending = asyncio.create_task(_end_idle(sessions))
    try:
        yield
    finally:
        ending.cancel()
        server.close()
        await sessions.close()
        await runner.cleanup()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _end_idle(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(min(_LOOK_SECONDS, sessions.limits.idle_seconds / 4))
        await sessions.end_idle()
