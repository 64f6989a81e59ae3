"""Fetch a pack of deltas: from the version's folder where that is visible, a store, or over HTTP.

Each is worth one attempt over one connection. Whatever goes wrong, the version is fetched as it is.
"""

import asyncio
import contextlib
from http import HTTPStatus
from pathlib import Path

import aiohttp

from rlboost_jax.messages import Manifest
from rlboost_jax.platform.bounded_files import Unreadable, read_bytes
from rlboost_jax.platform.object_store import ObjectStore, StoreFailed
from rlboost_jax.sequences.identities import Version
from rlboost_jax.trust.credentials import Endpoint
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.connections import Connections
from rlboost_jax.weights.delta_packs import FOLDER
from rlboost_jax.weights.serve import pack_url
from rlboost_jax.weights.stored_versions import stored_pack


async def fetch_pack(
    manifest: Manifest,
    base: Version,
    *,
    most: int,
    source: str,
    server: Endpoint | None,
    connections: Connections,
    counter: ByteCounter,
    store: ObjectStore | None = None,
) -> bytes:
    """The differences of a version's files from those of `base`; b"" if they cannot be had.

    Args:
        most: bytes that are taken.
        source: see `Puller`.
        server: of files over HTTP.
        counter: of what comes.
        store: that has packs, too.
    """
    folder = Path(manifest.directory)
    try:
        if source == "directory" or (source == "auto" and await asyncio.to_thread(folder.is_dir)):
            path = folder / FOLDER / str(base)
            data = await asyncio.to_thread(read_bytes, path, most, "a pack of deltas")
            counter.add(len(data))
            return data
        if store is not None and source in ("auto", "store"):
            with contextlib.suppress(StoreFailed):
                data = await asyncio.to_thread(stored_pack, store, manifest.version, base, most)
                counter.add(len(data))
                return data
        if server is None or source == "store":
            return b""
        received = bytearray()
        async with connections.to(server) as (session, _):
            headers = {"Accept-Encoding": "identity"}
            url = pack_url(manifest.version, base)
            async with session.get(url, headers=headers) as response:
                if response.status != HTTPStatus.OK:
                    return b""
                async for part in response.content.iter_any():
                    received += part
                    counter.add(len(part))
                    if len(received) > most:
                        return b""
        return bytes(received)
    except (Unreadable, OSError, aiohttp.ClientError, TimeoutError):
        return b""
