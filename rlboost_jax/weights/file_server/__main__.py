"""The file server: `python -m rlboost_jax.weights.file_server --listener=FD`.

Started by the manager, which holds the listening socket FD, gives its orders on standard input
and hears a byte a second on standard output. It ends with the manager, however that ends: by the
end of its input, and on Linux by the kernel's signal, which a stopped process gets, too.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Final

from aiohttp import web

from rlboost_jax.trust import authority
from rlboost_jax.trust.authorization import guarded
from rlboost_jax.trust.gate import (
    HANDSHAKE_SECONDS,
    KEEP_ALIVE_SECONDS,
    MAX_NEWCOMERS,
    NEWCOMER_SECONDS,
    RUNNER_OPTIONS,
    Gate,
)
from rlboost_jax.trust.listener_limits import ListenerLimits
from rlboost_jax.trust.run_files import Tokens
from rlboost_jax.weights.connections import DOWNLOADS
from rlboost_jax.weights.file_server.beats import beat
from rlboost_jax.weights.file_server.child import orders, run_child
from rlboost_jax.weights.file_server.file_server_orders import FileServerSetup, Serve, read_order
from rlboost_jax.weights.serve import ServedVersions, add_routes
from rlboost_jax.weights.wheels import add_delivery_routes

LIMITS: Final = ListenerLimits(
    name="file server",
    connections=DOWNLOADS + 64,  # the rest is for the trainer's engines
    credential_connections=DOWNLOADS,
    connection_bytes=3 * 2**19,  # beside the usual, a chunk and the same encrypted
    newcomers=MAX_NEWCOMERS,
    newcomer_seconds=NEWCOMER_SECONDS,
    handshake_seconds=HANDSHAKE_SECONDS,
    idle_seconds=KEEP_ALIVE_SECONDS,
    message_bytes=0,  # nobody sends a body
    credential_bytes=0,
    total_bytes=0,
)


def main(arguments: list[str]) -> int:
    return run_child(__doc__, arguments, serve)


async def serve(listener: socket.socket) -> int:
    """Serve what the orders say until they end; returns the exit code."""
    said = await orders()
    setup = await read_order(said)
    if not isinstance(setup, FileServerSetup):
        return 0  # the manager is gone already
    gate, versions = Gate(LIMITS), ServedVersions()
    tokens = Tokens(server=setup.server_token, trainer=setup.trainer_token)
    app = guarded(tokens, gate.admit)
    add_routes(app, versions)
    add_delivery_routes(app, compiled=setup.compiled, wheels=setup.wheels)
    runner = web.AppRunner(app, **RUNNER_OPTIONS)
    await runner.setup()
    assert runner.server is not None
    tls = authority.server_tls(Path(setup.authority)) if setup.authority else None
    beating = asyncio.ensure_future(beat())
    serving = False
    while isinstance(order := await read_order(said), Serve):
        await versions.replace(order.versions)
        if not serving:
            await gate.listen_on(runner.server, listener, tls)
            serving = True
    beating.cancel()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # no thread that reads a file is waited for
