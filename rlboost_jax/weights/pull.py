"""Fetch a snapshot from wherever it can be had, verify it, read it.

Whatever the source, every file is first brought into a spool of this process and hashed as
it comes, so that exactly the verified bytes are read later. The spool is in memory where the
host offers that, and is gone once the arrays are read. File systems may hang: they are
touched in threads only, never in the event loop that renews the lease.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from rlboost_jax.messages import FileEntry, Manifest, PieceList
from rlboost_jax.platform.object_store import ObjectStore
from rlboost_jax.trust.credentials import Endpoint
from rlboost_jax.trust.seal import check_seal
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter, FileSource, copy_file
from rlboost_jax.weights.connections import RETRIES, Connections, Retries
from rlboost_jax.weights.delta_base import DeltaBase
from rlboost_jax.weights.delta_codec import DeltaError
from rlboost_jax.weights.delta_packs import read_pack
from rlboost_jax.weights.download import download
from rlboost_jax.weights.leaf_arrays import read_params
from rlboost_jax.weights.leaf_cache import LeafCache, put_leaf, without
from rlboost_jax.weights.pack_fetch import fetch_pack
from rlboost_jax.weights.piece_lists import decoded_list, list_entry
from rlboost_jax.weights.pieces import MOST_CONNECTIONS
from rlboost_jax.weights.serve import list_url, weights_url
from rlboost_jax.weights.spool import spooled
from rlboost_jax.weights.stored_versions import copy_stored

CONCURRENT_FILES: Final = 4  # of a directory

__all__ = ["Pulled", "Puller", "WeightsError", "fetch"]


T = TypeVar("T")


@dataclass(frozen=True)
class Pulled:
    params: dict[str, Any]  # nested, NumPy leaves
    fetched_bytes: int


class Puller:
    """Pulls snapshots for one server; lasting leaves once, which then stay in its memory.

    Within `async with` connections are kept from one pull to the next.

    Args:
        source: "directory", "http", "store", or "auto": the directory where it is visible, else the
            store where there is one, else HTTP.
        manager: of a run whose trainer has sealed every manifest; serves snapshots over HTTP
            until `reach` says at which port. None for who knows where a manifest comes from:
            it is read from its directory, unsealed.
        weights: HOST:PORT where they are served, whatever `reach` says; "": go by `reach`.
        folder: for spools; None takes memory where there is room, else the temporary folder.
        retries: of downloads.
        connections: of a download, at most.
        store: that has versions, too.
        deltas: keep each version in the host's memory, and of the next one fetch the differences
            where the trainer has them.

    Attributes:
        pulled: counts what has come so far, of all snapshots.
    """

    def __init__(
        self,
        *,
        source: str,
        manager: Endpoint | None,
        folder: Path | None = None,
        weights: str = "",
        retries: Retries = RETRIES,
        connections: int = MOST_CONNECTIONS,
        store: ObjectStore | None = None,
        deltas: bool = False,
    ):
        self._source, self._manager, self._folder = source, manager, folder
        self._store = store
        self._weights, self._port = weights, 0
        self._kept, self.pulled = LeafCache(), ByteCounter()
        self._base = DeltaBase() if deltas else None
        self._list: tuple[str, PieceList] | None = None  # fetched last, and its digest
        self._connections = Connections(retries, most=connections)

    async def __aenter__(self) -> "Puller":
        await self._connections.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connections.__aexit__(*error)

    def reach(self, port: int) -> None:
        """Set the port of the manager's host that serves weights; 0: the manager's own port."""
        self._port = port

    async def pull(self, manifest: Manifest) -> Pulled:
        """Fetch, verify and read; nothing is touched for a manifest without the run's seal.

        Raises:
            WeightsError: naming the file or leaf, and what is wrong with it.
        """
        server = None
        if self._manager is not None:
            check_seal(manifest, self._manager.credentials.seal)
            host, _, own = self._manager.address.rpartition(":")
            server = replace(self._manager, address=self._weights or f"{host}:{self._port or own}")
        pieces, list_bytes = await self._listed(manifest, server)
        missing = self._kept.missing(pieces)
        made, pack_bytes = await self._made(manifest, missing, server)
        missing = without(missing, made)
        params = await self._fetched(manifest, pieces, missing, server) if missing.files else {}
        for name, array in made.items():
            put_leaf(params, name, array)
        self._kept.complete(params, pieces)
        if self._base is not None:
            self._base.hold(manifest.version, pieces, params)
        fetched_bytes = list_bytes + pack_bytes + missing.num_bytes
        return Pulled(params=params, fetched_bytes=fetched_bytes)

    async def _listed(self, manifest: Manifest, server: Endpoint | None) -> tuple[PieceList, int]:
        """The list of a manifest's pieces, and how many bytes came for it."""
        digest, entry = manifest.list_sha256, list_entry(manifest)
        if self._list is not None and self._list[0] == digest:
            return self._list[1], 0
        only = PieceList(files=(entry,), leaves=())
        url = list_url(manifest.version)

        def read(folder: Path) -> PieceList:
            return decoded_list((folder / entry.path).read_bytes())

        beside = msgspec.structs.replace(manifest, directory=str(Path(manifest.directory).parent))
        pieces = await self._from(beside, only, only, url, server, read)
        self._list = digest, pieces
        return pieces, entry.size

    async def _made(
        self, manifest: Manifest, missing: PieceList, server: Endpoint | None
    ) -> tuple[dict[str, np.ndarray], int]:
        """Leaves made of the version pulled before, by name; and how many bytes came for it."""
        base = self._base
        if base is None or base.version is None:
            return {}, 0
        data = await fetch_pack(
            manifest,
            base.version,
            most=missing.num_bytes,
            source=self._source,
            server=server,
            connections=self._connections,
            counter=self.pulled,
            store=self._store,
        )
        try:
            pack = read_pack(data) if data else {}
        except DeltaError:
            pack = {}
        return await asyncio.to_thread(base.made, missing, pack), len(data)

    async def _fetched(
        self, manifest: Manifest, pieces: PieceList, missing: PieceList, server: Endpoint | None
    ) -> dict[str, Any]:
        """Leaves of the missing part of a version, as they are."""
        url = weights_url(manifest.version)

        def read(folder: Path) -> dict[str, Any]:
            return read_params(folder, missing)

        return await self._from(manifest, pieces, missing, url, server, read)

    async def _from(
        self,
        manifest: Manifest,
        pieces: PieceList,
        missing: PieceList,
        url: str,
        server: Endpoint | None,
        read: Callable[[Path], T],
    ) -> T:
        """What `read` makes of the missing files of those that a URL has."""
        try:
            async with spooled(self._folder, missing.num_bytes) as spool:
                await fetch(
                    manifest,
                    pieces,
                    wanted=missing,
                    url=url,
                    source=self._source,
                    server=server,
                    spool=spool,
                    counter=self.pulled,
                    connections=self._connections,
                    store=self._store,
                )
                return await asyncio.to_thread(read, spool)
        except OSError as error:  # of this host: no room, no permission
            raise WeightsError(f"version {manifest.version}: {error}") from error


async def fetch(
    manifest: Manifest,
    pieces: PieceList,
    *,
    source: str,
    server: Endpoint | None,
    spool: Path,
    counter: ByteCounter,
    wanted: PieceList | None = None,
    url: str = "",
    connections: Connections | None = None,
    store: ObjectStore | None = None,
) -> Path:
    """Bring files of a version into `spool`, verified; returns `spool`.

    Args:
        pieces: all that the server has under `url`, one behind the other.
        server: of files over HTTP.
        counter: of what comes.
        wanted: part of the pieces, to be brought; None: all.
        url: "": that of the version's files.
        connections: to the server; None: ones that end with this.
        store: that has the files, too.

    Raises:
        WeightsError: naming the first file that is missing or differs, and how.
    """
    if source not in ("auto", "directory", "http", "store"):
        raise ValueError(f"weights.source = {source!r}; use 'auto', 'directory', 'http' or 'store'")
    files = (wanted or pieces).files
    await asyncio.to_thread(_make_folders, spool, files)
    directory = Path(manifest.directory)
    if source == "directory" or (
        source == "auto" and await asyncio.to_thread(_visible, directory, files)
    ):
        try:
            await _copy_all(files, partial(copy_file, directory), spool, counter)
            return spool
        except WeightsError:
            if source == "directory" or server is None:
                raise  # "auto" has others left to try
    if store is not None and source in ("auto", "store"):
        try:
            await _copy_all(files, partial(copy_stored, store), spool, counter)
            return spool
        except WeightsError:
            if source == "store" or server is None:
                raise
    if source == "store":
        raise WeightsError(f"version {manifest.version}: weights.store cannot be opened here")
    if server is None:
        raise WeightsError(f"version {manifest.version}: {directory} is not visible on this host")
    snapshot = FileSource(
        url=url or weights_url(manifest.version),
        files=pieces.files,
        wanted=frozenset(entry.path for entry in files),
    )
    async with (connections or Connections()).to(server) as (session, retries):
        await download([snapshot], session, spool, counter, retries)
    return spool


async def _copy_all(
    files: tuple[FileEntry, ...], copy: Callable[..., None], spool: Path, counter: ByteCounter
) -> None:
    """Copy several files at a time: hashing releases the interpreter lock.

    Args:
        copy: called with an entry, its target, the counter, and an event that ends it.
    """
    loop = asyncio.get_running_loop()
    abort = threading.Event()
    threads = ThreadPoolExecutor(CONCURRENT_FILES, thread_name_prefix="weights")
    copies = [
        loop.run_in_executor(threads, copy, entry, spool / entry.path, counter, abort)
        for entry in files
    ]
    try:
        await _all_or_first_error(copies)
    finally:
        # A thread cannot be cancelled: it looks at `abort` and is gone within a chunk. Until
        # then the spool must stay.
        abort.set()
        threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(threads.shutdown)


async def _all_or_first_error(futures: Sequence[asyncio.Future[None]]) -> None:
    """Wait for all; at the first failure or a cancellation, stop the others."""
    try:
        await asyncio.gather(*futures)
    finally:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)


def _make_folders(spool: Path, files: Sequence[FileEntry]) -> None:
    for folder in {(spool / entry.path).parent for entry in files}:
        folder.mkdir(parents=True, exist_ok=True)


def _visible(directory: Path, files: Sequence[FileEntry]) -> bool:
    return bool(files) and (directory / files[0].path).is_file()
