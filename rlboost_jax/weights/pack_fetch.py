"""Fetch a pack of deltas: from the version's folder where that is visible, a store, or over HTTP.

Each is worth one attempt over one connection, once it is made: an empty one is asked for again for
a while. Whatever goes wrong, the version is fetched as it is.
"""

import asyncio
import contextlib
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

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

LEAST_PATIENCE_SECONDS: Final = 0.5  # the pack of a version that takes less is made in less, too
MOST_PATIENCE_SECONDS: Final = 60.0
_FIRST_PAUSE_SECONDS: Final = 0.02  # doubles with each
_LONGEST_PAUSE_SECONDS: Final = 1.0


async def fetch_pack(
    manifest: Manifest,
    base: Version,
    *,
    most: int,
    patience_seconds: float,
    source: str,
    server: Endpoint | None,
    connections: Connections,
    counter: ByteCounter,
    store: ObjectStore | None = None,
) -> bytes:
    """The differences of a version's files from those of `base`; b"" if they cannot be had.

    Args:
        most: bytes that are taken.
        patience_seconds: for which a pack that is being made is waited for.
        source: see `Puller`.
        server: of files over HTTP.
        counter: of what comes.
        store: that has packs, too.
    """
    fetch = partial(_fetched, manifest, base, most, source, server, connections, counter, store)
    clock, pause = asyncio.get_running_loop().time, _FIRST_PAUSE_SECONDS
    patience = min(max(patience_seconds, LEAST_PATIENCE_SECONDS), MOST_PATIENCE_SECONDS)
    deadline = clock() + patience
    while (data := await fetch()) == b"" and clock() + pause < deadline:
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return data or b""


async def _fetched(
    manifest: Manifest,
    base: Version,
    most: int,
    source: str,
    server: Endpoint | None,
    connections: Connections,
    counter: ByteCounter,
    store: ObjectStore | None,
) -> bytes | None:
    """The pack as it is now: b"" while it is being made, None if it cannot be had."""
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
            return None
        received = bytearray()
        async with connections.to(server) as (session, _):
            headers = {"Accept-Encoding": "identity"}
            url = pack_url(manifest.version, base)
            async with session.get(url, headers=headers) as response:
                if response.status != HTTPStatus.OK:
                    return None
                async for part in response.content.iter_any():
                    received += part
                    counter.add(len(part))
                    if len(received) > most:
                        return None
        return bytes(received)
    except (Unreadable, OSError, aiohttp.ClientError, TimeoutError):
        return None
