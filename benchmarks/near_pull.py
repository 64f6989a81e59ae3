"""Bytes per second and memory of a pull over loopback, beside a plain socket in the same run.

    python -m benchmarks.near_pull [--layers=12] [--rounds=3] [--join]

Another process serves a version of so many layers of 32 MB over HTTP, without TLS, and as many
bytes over a socket. Rounds take turns, and the best of each counts. "pull" ends with arrays that
were verified; "device" with those of an engine, which takes each leaf of a layer as it comes. They
lie in the same memory here, so the peak is told above what is there at the end. The socket's bytes
are received into memory and nothing more is done with them. With TLS both sides encrypt besides,
which the file server's process of a run does.
"""

import argparse
import asyncio
import gc
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import msgspec
import numpy as np
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlboost_jax.engine.engine_parameters import EngineParameters
from rlboost_jax.messages import Manifest
from rlboost_jax.models.params import Params, abstract_params, unstack_layers
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.trust.credentials import Credentials, Endpoint
from rlboost_jax.trust.seal import public_of, sealed
from rlboost_jax.weights import serve
from rlboost_jax.weights.layer_feed import Begin
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.snapshots import SnapshotStore

HERE = "127.0.0.1"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
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


def model_of(layers: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=4096,
        embed_dim=1024,
        num_layers=layers,
        num_query_heads=16,
        num_key_heads=16,
        head_dim=64,
        hidden_dim=4096,
        dtype="bfloat16",
        tie_embeddings=True,
    )


def random_params(model: ModelConfig) -> Params:
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: random.integers(0, 2**16, leaf.shape, np.uint16).view(BFLOAT16),
        abstract_params(model),
    )


def engine_parameters(model: ModelConfig, *, join: bool) -> EngineParameters:
    """Parameters of an engine on one device; one GPU joins matrices there."""
    here = jax.devices()[0]
    places = jax.tree.map(lambda _: here, jax.eval_shape(unstack_layers, abstract_params(model)))
    return EngineParameters(model, places, "bfloat16", join=join)


def pulled(port: int, manifest: Manifest, key: Ed25519PrivateKey, begin: Begin | None) -> Any:
    there = Endpoint(
        address=f"{HERE}:{port}", credentials=Credentials(token="", seal=public_of(key))
    )
    return asyncio.run(Puller(source="http", manager=there).pull(sealed(manifest, key), begin))


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def memory(name: str) -> int:
    """Bytes of memory in which the process lies: "VmRSS" now, "VmHWM" at most since the reset."""
    return 1024 * int(Path("/proc/self/status").read_text().partition(name + ":")[2].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--join", action="store_true", help="join matrices, which a GPU would do")
    options = parser.parse_args()
    key, model = Ed25519PrivateKey.generate(), model_of(options.layers)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = SnapshotStore(Path(folder), dtype="bfloat16", keep=1)
        manifest = store.write(0, random_params(model), "d")
        there, said = multiprocessing.Pipe(duplex=False)
        spawned = multiprocessing.get_context("spawn")
        process = spawned.Process(target=serve_both, args=(manifest, said), daemon=True)
        process.start()
        port, plain = there.recv()
        far = msgspec.structs.replace(manifest, directory="/nowhere")
        parameters, size = engine_parameters(model, join=options.join), manifest.piece_bytes
        ways: dict[str, Callable[[], Any]] = {
            "socket": lambda: received(plain, size),
            "pull": lambda: pulled(port, far, key, None),
            "device": lambda: pulled(port, far, key, parameters.arriving),
        }
        best = dict.fromkeys(ways, 0.0)
        for _ in range(options.rounds):
            for name, run in ways.items():
                gc.collect()
                reset_peak()
                began, busy = time.monotonic(), time.process_time()
                result = run()
                rate = size / (time.monotonic() - began) / 1e6
                busy = (time.process_time() - busy) / size * 1e9
                above = memory("VmHWM") - memory("VmRSS")
                del result
                best[name] = max(best[name], rate)
                print(
                    f"  {name:7} {rate:7.0f} MB/s, {busy:5.2f} s of a core a GB, "
                    f"{above / 1e6:4.0f} MB above its end",
                    flush=True,
                )
        process.kill()
    for name in ("pull", "device"):
        share = best[name] / best["socket"]
        print(
            f"best {name} of {size / 1e6:.0f} MB {best[name]:.0f} MB/s, {share:.2f} of a socket's"
        )


if __name__ == "__main__":
    main()
