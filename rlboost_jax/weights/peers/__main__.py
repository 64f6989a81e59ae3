"""The process that serves a server's pieces: `python -m rlboost_jax.weights.peers --listener=FD`.

Started by a rollout server, which holds the listening socket FD and gives its orders on standard
input. It has less of the processors than the engine does, and ends with the server.
"""

import asyncio
import os
import socket
import sys
from typing import Final

from aiohttp import web

from rlboost_jax.trust.gate import RUNNER_OPTIONS, Gate
from rlboost_jax.trust.transfers import listening_tls
from rlboost_jax.weights.file_server.beats import beat
from rlboost_jax.weights.file_server.child import orders, run_child
from rlboost_jax.weights.peers.piece_orders import PiecesSetup, read_piece_order
from rlboost_jax.weights.peers.piece_serving import PEER_LIMITS, ServedPieces, UploadPace, piece_app

NICENESS: Final = 10


def main(arguments: list[str]) -> int:
    return run_child(__doc__, arguments, serve, niceness=NICENESS)


async def serve(listener: socket.socket) -> int:
    """Serve what the orders say until they end; returns the exit code."""
    said = await orders()
    setup = await read_piece_order(said)
    if not isinstance(setup, PiecesSetup):
        return 0  # the server is gone already
    gate, served = Gate(PEER_LIMITS), ServedPieces()
    app = piece_app(setup.key, served, gate.admit, pace=UploadPace(setup.bytes_per_second))
    runner = web.AppRunner(app, **RUNNER_OPTIONS)
    await runner.setup()
    assert runner.server is not None
    tls = None
    if setup.certificate:
        tls = listening_tls(setup.certificate, setup.private, setup.authority)
    await gate.listen_on(runner.server, listener, tls)
    beating = asyncio.ensure_future(beat())
    while (order := await read_piece_order(said)) is not None:
        if not isinstance(order, PiecesSetup):
            await served.obey(order)
    beating.cancel()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # no thread that reads a file is waited for
