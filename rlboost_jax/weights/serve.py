"""Snapshot files over HTTP, for servers that do not see the learner's disk."""

import asyncio
import bisect
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from rlboost_jax.messages import FileEntry, Manifest, PieceList
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.delta_packs import FOLDER as PACKS
from rlboost_jax.weights.piece_lists import list_path, read_list

UNKNOWN_SECONDS: Final = 1.0  # for a version that was announced a moment ago to be known here, too
CHUNK_BYTES: Final = 2**18  # read and encrypted at a time for a connection


@dataclass(frozen=True, slots=True)
class FilePart:
    """A range of bytes of a file.

    Attributes:
        size: of the whole file.
        begin, end: the first byte, and the one after the last.
    """

    path: str
    size: int
    begin: int
    end: int


class ServedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a manifest that is needed to serve its files."""

    version: int
    directory: str
    list_bytes: int
    list_sha256: str


def served_version(manifest: Manifest) -> ServedVersion:
    return ServedVersion(
        version=manifest.version,
        directory=manifest.directory,
        list_bytes=manifest.list_bytes,
        list_sha256=manifest.list_sha256,
    )


class ServedFiles:
    """The files of a version's list, one behind the other."""

    def __init__(self, pieces: PieceList) -> None:
        self._files = pieces.files
        self._begins = [0, *itertools.accumulate(entry.size for entry in pieces.files)]
        self.num_bytes = self._begins[-1]

    def parts(self, begin: int, end: int) -> list[FilePart]:
        """File ranges that hold bytes `begin` to `end`."""
        found = []
        number = max(0, bisect.bisect_right(self._begins, begin) - 1)
        while number < len(self._files) and (offset := self._begins[number]) < end:
            entry = self._files[number]
            first, last = max(begin - offset, 0), min(end - offset, entry.size)
            if first < last:
                found.append(FilePart(entry.path, entry.size, first, last))
            number += 1
        return found


class ServedVersions:
    """The versions that may be fetched now, and their lists. To be used in one event loop.

    Args:
        unknown_seconds: for which a request waits for a version that is not known yet.
    """

    def __init__(
        self, versions: Iterable[ServedVersion] = (), unknown_seconds: float = UNKNOWN_SECONDS
    ) -> None:
        self._unknown_seconds = unknown_seconds
        self._changed = asyncio.Condition()
        self._versions = {served.version: served for served in versions}
        self._files: dict[ServedVersion, ServedFiles] = {}
        self._reading = asyncio.Lock()

    async def replace(self, versions: Iterable[ServedVersion]) -> None:
        """Serve these versions, and no others."""
        async with self._changed:
            self._versions = {served.version: served for served in versions}
            known = set(self._versions.values())
            self._files = {one: files for one, files in self._files.items() if one in known}
            self._changed.notify_all()

    async def find(self, version: int) -> ServedVersion | None:
        """A version, or None if it is still unknown after `unknown_seconds`."""
        try:
            async with asyncio.timeout(self._unknown_seconds), self._changed:
                await self._changed.wait_for(lambda: version in self._versions)
        except TimeoutError:
            return None
        return self._versions[version]

    async def files(self, served: ServedVersion) -> ServedFiles:
        """The files that a version's list names, read once. Raises WeightsError."""
        async with self._reading:
            if served not in self._files:
                size, digest = served.list_bytes, served.list_sha256
                pieces = await asyncio.to_thread(read_list, Path(served.directory), size, digest)
                self._files[served] = ServedFiles(pieces)
            return self._files[served]


def weights_url(version: int) -> str:
    """Path of a snapshot below the address of whatever serves it."""
    return f"/weights/{version}"


def list_url(version: int) -> str:
    """Path of a snapshot's list of pieces."""
    return f"/weights/{version}/list"


def pack_url(version: int, base: int) -> str:
    """Path of the differences of a version from an older one."""
    return f"/weights/{version}/since/{base}"


def add_routes(app: web.Application, versions: ServedVersions) -> None:
    """Serve `GET /weights/{version}/list`: the list of a version's pieces; `GET
    /weights/{version}`: the files of that list one behind the other, in its order; both whole or by
    one byte range; and `GET /weights/{version}/since/{base}`: a pack of deltas, empty while it is
    being made.

    Only lists of known manifests and files that these name are served, and nobody who asks names
    any. Who may ask is for the application's middleware to decide.
    """

    async def found(request: web.Request) -> ServedVersion:
        version = int(request.match_info["version"])
        served = await versions.find(version)
        if served is None:
            raise web.HTTPNotFound(text=f"version {version} is not known here")
        return served

    async def serve_list(request: web.Request) -> web.StreamResponse:
        served = await found(request)
        path, size = list_path(served.directory), served.list_bytes
        entry = FileEntry(path=path.name, size=size, sha256=served.list_sha256)
        only = ServedFiles(PieceList(files=(entry,), leaves=()))
        return await respond(request, served.version, str(path.parent), only)

    async def serve(request: web.Request) -> web.StreamResponse:
        served = await found(request)
        try:
            files = await versions.files(served)
        except WeightsError as error:
            text = f"version {served.version}: {error}"
            raise web.HTTPNotFound(text=text) from None
        return await respond(request, served.version, served.directory, files)

    async def respond(
        request: web.Request, version: int, directory: str, files: ServedFiles
    ) -> web.StreamResponse:
        try:
            begin, end, _ = request.http_range.indices(files.num_bytes)
        except ValueError:
            begin = end = -1
        ranged = "Range" in request.headers
        if ranged and begin >= end:
            raise web.HTTPRequestRangeNotSatisfiable(text=f"{files.num_bytes} bytes are here")
        parts = files.parts(begin, end)
        if problem := await asyncio.to_thread(_problem, directory, parts):
            raise web.HTTPNotFound(text=f"version {version}: {problem}")
        response = web.StreamResponse(status=206 if ranged else 200)
        response.content_length = end - begin
        if ranged:
            response.headers["Content-Range"] = f"bytes {begin}-{end - 1}/{files.num_bytes}"
        await response.prepare(request)
        for chunk in _chunks(parts):
            await response.write(await asyncio.to_thread(_read, directory, chunk))
        await response.write_eof()
        return response

    async def serve_pack(request: web.Request) -> web.StreamResponse:
        version, base = (int(request.match_info[name]) for name in ("version", "base"))
        served = await versions.find(version)
        pack = Path(served.directory if served else "") / PACKS / str(base)
        if served is None or not await asyncio.to_thread(pack.is_file):
            raise web.HTTPNotFound(text=f"no deltas of version {version} since {base} are here")
        return web.FileResponse(pack, chunk_size=CHUNK_BYTES)

    app.router.add_get(r"/weights/{version:\d{1,18}}", serve, allow_head=False)
    app.router.add_get(r"/weights/{version:\d{1,18}}/list", serve_list, allow_head=False)
    since = r"/weights/{version:\d{1,18}}/since/{base:\d{1,18}}"
    app.router.add_get(since, serve_pack, allow_head=False)


def _problem(directory: str, parts: Iterable[FilePart]) -> str:
    """First mismatch between the files on disk and their list; "" if there is none."""
    for part in parts:
        try:
            state = os.stat(os.path.join(directory, part.path))
        except OSError:
            return f"file {part.path!r} is gone"
        if not stat.S_ISREG(state.st_mode):
            return f"{part.path!r} is no file"
        if state.st_size != part.size:
            return f"{part.path}: {state.st_size} bytes, its manifest says {part.size}"
    return ""


def _chunks(parts: Iterable[FilePart]) -> Iterator[list[FilePart]]:
    """Group the ranges into reads of at most `CHUNK_BYTES`: small files together, long ones cut."""
    group: list[FilePart] = []
    room = CHUNK_BYTES
    for part in parts:
        while part.begin < part.end:
            cut = min(part.end, part.begin + room)
            group.append(replace(part, end=cut))
            room -= cut - part.begin
            part = replace(part, begin=cut)
            if not room:
                yield group
                group, room = [], CHUNK_BYTES
    if group:
        yield group


def _read(directory: str, group: Iterable[FilePart]) -> bytes:
    """Read a group. Raises ConnectionError, which aborts the response, if a file was truncated."""
    found = []
    for part in group:
        with open(os.path.join(directory, part.path), "rb", buffering=0) as file:
            file.seek(part.begin)
            found.append(file.read(part.end - part.begin))
        if len(found[-1]) != part.end - part.begin:
            raise ConnectionError(f"{part.path} became shorter")
    return b"".join(found)
