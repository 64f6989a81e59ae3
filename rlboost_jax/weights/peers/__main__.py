"""The process that serves a server's pieces: `python -m rlboost_jax.weights.peers --listener=FD`.

Started by a rollout server, which holds the listening socket FD, gives its orders on standard
input, and sends the memory that pieces are in over another socket. It has less of the processors
than the engine does, and ends with the server.
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
from rlboost_jax.weights.peers.piece_orders import Hold, PiecesSetup, read_piece_order
from rlboost_jax.weights.peers.piece_serving import PEER_LIMITS, ServedPieces, UploadPace, piece_app
from rlboost_jax.weights.peers.shared_blocks import receive_blocks

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
    line = socket.socket(fileno=setup.line)
    line.setblocking(False)
    while (order := await read_piece_order(said)) is not None:
        if isinstance(order, Hold):
            await served.obey(order, receive_blocks(line, order.blocks))
        elif not isinstance(order, PiecesSetup):
            await served.obey(order)
    beating.cancel()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # no thread that reads a file is waited for
