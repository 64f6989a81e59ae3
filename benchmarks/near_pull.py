"""Bytes per second of a pull over loopback, beside those of a plain socket in the same run.

    python -m benchmarks.near_pull [--megabytes=256] [--rounds=3]

Another process serves a version of one leaf over HTTP, without TLS, and as many bytes over a
socket.
Rounds take turns, and the best of each counts. A pull ends with arrays that were verified; the
socket's bytes are received into memory and nothing more is done with them. With TLS both sides
encrypt besides, which the file server's process of a run does.
"""

import argparse
import asyncio
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlboost_jax.messages import Manifest
from rlboost_jax.trust.credentials import Credentials, Endpoint
from rlboost_jax.trust.seal import public_of, sealed
from rlboost_jax.weights import serve
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.snapshots import SnapshotStore

HERE = "127.0.0.1"
BLOCK_BYTES = 2**20


def serve_both(manifest: Manifest, said: Connection) -> None:
    """The other process: says its two ports."""
    plain = socket.create_server((HERE, 0))
    block = os.urandom(BLOCK_BYTES)

    def send() -> None:
        while True:
            line, _ = plain.accept()
            with line:
                left = manifest.piece_bytes
                while left:
                    left -= line.send(block[: min(left, BLOCK_BYTES)])

    threading.Thread(target=send, daemon=True).start()

    async def main() -> None:
        app = web.Application()
        serve.add_routes(app, serve.ServedVersions([serve.served_version(manifest)]))
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, HERE, 0)
        await site.start()
        assert site._server is not None
        said.send((site._server.sockets[0].getsockname()[1], plain.getsockname()[1]))
        await asyncio.Event().wait()

    asyncio.run(main())


def received(port: int, size: int) -> None:
    room = memoryview(bytearray(size))
    with socket.create_connection((HERE, port)) as line:
        at = 0
        while at < size:
            at += line.recv_into(room[at:])


def pulled(port: int, manifest: Manifest, key: Ed25519PrivateKey) -> None:
    there = Endpoint(
        address=f"{HERE}:{port}", credentials=Credentials(token="", seal=public_of(key))
    )
    asyncio.run(Puller(source="http", manager=there).pull(sealed(manifest, key)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    key = Ed25519PrivateKey.generate()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        rows = options.megabytes * 2**20 // 2**15
        leaf = np.random.default_rng(0).integers(0, 2**16, (rows, 2**14), np.uint16)
        manifest = SnapshotStore(Path(folder), dtype="bfloat16", keep=1).write(0, {"a": leaf}, "d")
        there, said = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=serve_both, args=(manifest, said), daemon=True)
        process.start()
        port, plain = there.recv()
        far = msgspec.structs.replace(manifest, directory="/nowhere")
        best = {"socket": 0.0, "pull": 0.0}
        for _ in range(options.rounds):
            for name in best:
                began, busy = time.monotonic(), time.process_time()
                if name == "socket":
                    received(plain, manifest.piece_bytes)
                else:
                    pulled(port, far, key)
                rate = manifest.piece_bytes / (time.monotonic() - began) / 1e6
                best[name] = max(best[name], rate)
                busy = (time.process_time() - busy) / manifest.piece_bytes * 1e9
                print(f"  {name:7} {rate:7.0f} MB/s, {busy:5.2f} s of a core a GB", flush=True)
        process.kill()
    print(f"best pull {best['pull']:.0f} MB/s, {best['pull'] / best['socket']:.2f} of a socket's")


if __name__ == "__main__":
    main()
