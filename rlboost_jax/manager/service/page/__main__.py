"""The page's process: `python -m rlboost_jax.manager.service.page --listener=FD --manager=PID`.

Started by the manager like the file server, and like it ends with the manager. It holds the page's
token and certificate, and none of the trainer's or the servers'.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Collection
from pathlib import Path

from aiohttp import web

from rlboost_jax.manager.service.page.page_app import LIMITS, make_app
from rlboost_jax.manager.service.page.page_certificate import page_tls
from rlboost_jax.trust.gate import RUNNER_OPTIONS, Gate
from rlboost_jax.weights.file_server.beats import beat
from rlboost_jax.weights.file_server.child import orders, run_child
from rlboost_jax.weights.file_server.file_server_orders import PageSetup, read_order


def main(arguments: list[str]) -> int:
    return run_child(__doc__, arguments, serve, niceness=10)  # who looks on is in nobody's way


async def serve(listener: socket.socket) -> int:
    """Serve until the orders end; returns the exit code."""
    said = await orders()
    setup = await read_order(said)
    if not isinstance(setup, PageSetup):
        return 0  # the manager is gone already
    beating = asyncio.ensure_future(beat())
    await listen(
        listener,
        Path(setup.workdir),
        token=setup.token,
        certificates=Path(setup.certificates),
        hosts=setup.hosts,
    )
    while await read_order(said) is not None:
        pass
    beating.cancel()
    return 0


async def listen(
    listener: socket.socket,
    workdir: Path,
    *,
    token: str | None,
    certificates: Path | None,
    hosts: Collection[str] = (),
) -> web.AppRunner:
    """Start to serve a run's page.

    Args:
        token: None: at a socket that only its owner can open.
        certificates: folder of the page's; None: no TLS, at such a socket.
        hosts: names by which a browser may ask for it; with a token.
    """
    gate = Gate(LIMITS)
    app = make_app(workdir, token=token, admit=gate.admit, hosts=hosts)
    runner = web.AppRunner(app, shutdown_timeout=0.5, **RUNNER_OPTIONS)
    await runner.setup()
    assert runner.server is not None
    tls = page_tls(certificates) if certificates is not None else None
    await gate.listen_on(runner.server, listener, tls)
    return runner


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # no thread that reads a file is waited for
