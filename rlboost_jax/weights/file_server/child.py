"""The start of a process that serves files, or the page, for the manager."""

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence

from rlboost_jax.platform import process_liveness
from rlboost_jax.platform.malloc import keep_small


def run_child(
    description: str | None,
    arguments: Sequence[str],
    serve: Callable[[socket.socket], Awaitable[int]],
    *,
    niceness: int = 0,
) -> int:
    """Serve until `serve` returns or the manager ends. Returns the exit code.

    Args:
        arguments: `--listener`, a socket's descriptor, and `--manager`, its process id.
        serve: is given the listening socket.
        niceness: more of it than the manager has.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--listener", type=int, required=True, help="descriptor of a socket")
    parser.add_argument("--manager", type=int, required=True, help="its process id")
    args = parser.parse_args(arguments)
    if not process_liveness.end_with_parent(args.manager):
        return 0
    keep_small()
    os.nice(niceness)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")

    async def main() -> int:
        return await serve(socket.socket(fileno=args.listener))

    return asyncio.run(main())


async def orders() -> asyncio.StreamReader:
    """Open standard input for the manager's orders, see `file_server_orders.read_order`."""
    stream = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), sys.stdin)
    return stream
