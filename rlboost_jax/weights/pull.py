"""Pull versions from wherever they can be had.

Whatever the source, every piece comes into this process's memory, where nobody else can change it,
and counts once it was hashed there. What is read is exactly what was verified.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlboost_jax.messages import FileEntry, Manifest, PieceList
from rlboost_jax.platform.object_store import ObjectStore
from rlboost_jax.platform.thread_calls import in_thread
from rlboost_jax.trust.credentials import Endpoint
from rlboost_jax.trust.seal import check_seal, root_of
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter, FilesInMemory, KnowingIntake
from rlboost_jax.weights.connections import RETRIES, Connections, Retries
from rlboost_jax.weights.delta_base import DeltaBase
from rlboost_jax.weights.delta_codec import DeltaError
from rlboost_jax.weights.delta_packs import read_pack
from rlboost_jax.weights.file_sources import Files, fetch
from rlboost_jax.weights.layer_feed import Begin, LayerFeed
from rlboost_jax.weights.leaf_arrays import LeafBuffers
from rlboost_jax.weights.leaf_cache import LeafCache, without
from rlboost_jax.weights.pack_fetch import fetch_pack
from rlboost_jax.weights.peers.exchange import PeerExchange
from rlboost_jax.weights.peers.held_pieces import HeldVersion
from rlboost_jax.weights.peers.outside_pieces import OutsideSource, StorePieces, TrainerPieces
from rlboost_jax.weights.piece_lists import decoded_list, list_entry
from rlboost_jax.weights.pieces import MOST_CONNECTIONS
from rlboost_jax.weights.serve import list_url, weights_url

__all__ = ["Pulled", "Puller", "WeightsError"]


@dataclass(frozen=True)
class Pulled:
    params: Any  # nested, NumPy leaves; or what a receiver made of them
    fetched_bytes: int  # from outside of this server's zone


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
        retries: of downloads.
        connections: of a download, at most.
        store: that has versions, too.
        deltas: keep each version in the host's memory, and of the next one fetch the differences
            where the trainer has them.
        peers: brings pieces from other servers, and keeps them to be served; None: nobody does.

    Attributes:
        pulled: counts what has come so far, of all snapshots.
    """

    def __init__(
        self,
        *,
        source: str,
        manager: Endpoint | None,
        weights: str = "",
        retries: Retries = RETRIES,
        connections: int = MOST_CONNECTIONS,
        store: ObjectStore | None = None,
        deltas: bool = False,
        peers: PeerExchange | None = None,
    ):
        self._peers, self._source = peers, source
        self._manager, self._store = manager, store
        self._weights, self._port = weights, 0
        self._kept, self.pulled = LeafCache(), ByteCounter()
        self._base = DeltaBase() if deltas else None
        self._most_fetched = 0, 0.0  # bytes of the largest fetch so far, and its seconds
        self._list: tuple[str, PieceList] | None = None  # fetched last, and its digest
        self._connections = Connections(retries, most=connections)

    async def __aenter__(self) -> "Puller":
        await self._connections.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connections.__aexit__(*error)
        if self._peers is not None:
            self._peers.held.close()

    def reach(self, port: int) -> None:
        """Set the port of the manager's host that serves weights; 0: the manager's own port."""
        self._port = port

    async def pull(self, manifest: Manifest, begin: Begin | None = None) -> Pulled:
        """Fetch, verify and read; nothing is touched for a manifest without the run's seal.

        Args:
            begin: makes a receiver, which is then given each part of the version once it is all
                there; the host's memory of it is free again, or is the next version's.

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
        arriving: contextlib.AbstractAsyncContextManager[HeldVersion | None]
        arriving = contextlib.nullcontext()
        if self._peers is not None and server is not None and self._source != "directory":
            arriving = self._peers.held.arriving(root_of(manifest), pieces, missing)
        feed: LayerFeed | None = None
        try:
            async with arriving as version:
                leaves = (
                    version.leaves if version else await asyncio.to_thread(self._buffers, missing)
                )
                if feed := self._feed(begin, pieces, leaves, version):
                    await in_thread(feed.begin)
                come = await self._bring(manifest, pieces, server, leaves, version)
            params = self._kept_from(manifest, pieces, leaves, version, given_away=feed is None)
            prepared = await in_thread(feed.prepared) if feed else params
            return Pulled(params=prepared, fetched_bytes=list_bytes + come)
        finally:
            if feed:
                feed.close()

    def _feed(
        self,
        begin: Begin | None,
        pieces: PieceList,
        leaves: LeafBuffers,
        version: HeldVersion | None,
    ) -> LayerFeed | None:
        """What hands a version on; None where nobody takes it before it is complete."""
        receiver = begin({leaf.name: leaf.shape for leaf in pieces.leaves}) if begin else None
        if receiver is None:
            return None
        others = {**self._kept.here(pieces), **(version.shared if version else {})}
        return LayerFeed(leaves, others, receiver, self._free(leaves, version))

    def _kept_from(
        self,
        manifest: Manifest,
        pieces: PieceList,
        leaves: LeafBuffers,
        version: HeldVersion | None,
        *,
        given_away: bool,
    ) -> dict[str, Any]:
        """Keep what the next pull needs of a version that is complete; returns its arrays.

        Args:
            given_away: the caller of the pull has the arrays from now on.
        """
        params = version.params() if version else leaves.params()
        self._kept.complete(params, pieces)
        if self._base is not None:
            chunks = version.chunks if version else leaves.chunks
            lasting = {leaf.name for leaf in pieces.leaves if leaf.lasting}
            there = {entry.path: entry for entry in without(pieces, lasting).files}
            own = {name: array for name, array in leaves.arrays.items() if name not in lasting}
            self._base.hold(
                manifest.version, chunks, there, {} if given_away or version is not None else own
            )
        return params

    def _buffers(self, missing: PieceList) -> LeafBuffers:
        """Memory for leaves that nobody else maps: the base's, unless somebody else has it."""
        if self._base is None or not self._base.arrays:
            return LeafBuffers(missing)
        return LeafBuffers(missing, arrays=self._base.room(missing), there=self._base.there)

    def _free(self, leaves: LeafBuffers, version: HeldVersion | None) -> set[str]:
        """Names of the leaves that nobody needs once they were taken."""
        if self._base is not None or (version is not None and version.serves):
            return set()
        return {leaf.name for leaf in leaves.pieces.leaves if not leaf.lasting}

    async def _listed(self, manifest: Manifest, server: Endpoint | None) -> tuple[PieceList, int]:
        """The list of a manifest's pieces, and how many bytes came for it."""
        digest, entry = manifest.list_sha256, list_entry(manifest)
        if self._list is not None and self._list[0] == digest:
            return self._list[1], 0
        come = FilesInMemory()
        await self._fetch(
            Files(
                place=f"list of version {manifest.version}",
                directory=Path(manifest.directory).parent,
                url=list_url(manifest.version),
                files=(entry,),
            ),
            (entry,),
            come,
            server,
        )
        pieces = await asyncio.to_thread(decoded_list, bytes(come.files[entry.path]))
        self._list = digest, pieces
        return pieces, entry.size

    async def _bring(
        self,
        manifest: Manifest,
        pieces: PieceList,
        server: Endpoint | None,
        leaves: LeafBuffers,
        version: HeldVersion | None = None,
    ) -> int:
        """Make or fetch leaves, and return the bytes that came from outside of this server's zone.

        Args:
            version: whose leaves they are, which other servers are asked for, too.
        """
        pack_bytes = await self._make(manifest, leaves, server)
        wanted, near_bytes = leaves.lacking(leaves.pieces.files), 0
        if version is not None and self._peers is not None:
            wanted = self._peers.held.add_complete(version)
        num_bytes, begun = sum(entry.size for entry in wanted), time.monotonic()
        files = Files(
            place=f"version {manifest.version}",
            directory=Path(manifest.directory),
            url=weights_url(manifest.version),
            files=pieces.files,
        )
        if wanted and version is not None and self._peers is not None and server is not None:
            near_bytes = await self._exchange(self._peers, version, files, wanted, server)
        elif wanted:
            await self._fetch(files, wanted, leaves, server)
        if num_bytes >= self._most_fetched[0]:
            self._most_fetched = num_bytes, time.monotonic() - begun
        return pack_bytes + max(0, num_bytes - near_bytes)

    async def _make(self, manifest: Manifest, leaves: LeafBuffers, server: Endpoint | None) -> int:
        """Make pieces of the version pulled before; returns the bytes that came for it."""
        base = self._base
        if base is None or base.version is None:
            return 0
        num_bytes = leaves.pieces.num_bytes
        fetched_bytes, seconds = self._most_fetched
        whole_seconds = seconds * num_bytes / max(1, fetched_bytes)
        data = await fetch_pack(
            manifest,
            base.version,
            most=num_bytes,
            patience_seconds=whole_seconds / 2,
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
        await in_thread(lambda: base.make(leaves, pack))
        return len(data)

    async def _exchange(
        self,
        peers: PeerExchange,
        version: HeldVersion,
        files: Files,
        wanted: tuple[FileEntry, ...],
        server: Endpoint,
    ) -> int:
        """Bring pieces from other servers, too; returns the bytes from those of this zone."""
        if self._source == "auto":  # this may be the trainer's host
            with contextlib.suppress(WeightsError):
                await self._fetch(files, wanted, version.leaves, None, source="directory")
            if not peers.held.add_complete(version):
                return 0
        async with self._connections.to(server) as (session, retries):
            outside: OutsideSource = TrainerPieces(files.url, files.files, session)
            if self._store is not None and self._source in ("auto", "store"):
                outside = StorePieces(files.files, self._store)
            return await peers.bring(version, self.pulled, outside, retries)

    async def _fetch(
        self,
        files: Files,
        wanted: tuple[FileEntry, ...],
        intake: KnowingIntake,
        server: Endpoint | None,
        *,
        source: str = "",
    ) -> None:
        await fetch(
            files,
            wanted,
            intake,
            source=source or self._source,
            server=server,
            counter=self.pulled,
            connections=self._connections,
            store=self._store,
        )
