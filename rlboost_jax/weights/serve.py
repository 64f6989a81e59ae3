"""Snapshot files over HTTP, for servers that do not see the learner's disk."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from rlboost_jax.messages import Manifest

UNKNOWN_SECONDS: Final = 1.0  # for a version that was announced a moment ago to be known here, too


class ServedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What of a manifest is needed to serve its files."""

    version: int
    directory: str
    paths: frozenset[str]


def served_version(manifest: Manifest) -> ServedVersion:
    return ServedVersion(
        version=manifest.version,
        directory=manifest.directory,
        paths=frozenset(entry.path for entry in manifest.files),
    )


class ServedVersions:
    """The versions that may be fetched now. To be used in one event loop."""

    def __init__(self, versions: Iterable[ServedVersion] = ()) -> None:
        self._changed = asyncio.Condition()
        self._versions = {served.version: served for served in versions}

    async def replace(self, versions: Iterable[ServedVersion]) -> None:
        """Let these be fetched, and no others."""
        async with self._changed:
            self._versions = {served.version: served for served in versions}
            self._changed.notify_all()

    async def find(self, version: int) -> ServedVersion | None:
        """A version, or None if it is still unknown after `UNKNOWN_SECONDS`."""
        try:
            async with asyncio.timeout(UNKNOWN_SECONDS), self._changed:
                await self._changed.wait_for(lambda: version in self._versions)
        except TimeoutError:
            return None
        return self._versions[version]


def weights_url(version: int, path: str) -> str:
    """Path of a snapshot's file below the address of whatever serves it."""
    return f"/weights/{version}/{path}"


def add_routes(app: web.Application, versions: ServedVersions) -> None:
    """Serve `GET /weights/{version}/{path}`, whole or by one byte range.

    Only files that a known manifest names are served, wherever else the path may point.
    Who may ask is for the application's middleware to decide.
    """

    async def serve(request: web.Request) -> web.StreamResponse:
        version, path = int(request.match_info["version"]), request.match_info["path"]
        served = await versions.find(version)
        if served is None:
            raise web.HTTPNotFound(text=f"version {version} is not known here")
        if path not in served.paths:
            raise web.HTTPNotFound(text=f"version {version} has no file {path!r}")
        file = Path(served.directory) / path
        if not await asyncio.to_thread(file.is_file):
            raise web.HTTPNotFound(text=f"file {path!r} of version {version} is gone")
        return web.FileResponse(file, chunk_size=2**20)

    app.router.add_get(r"/weights/{version:\d{1,18}}/{path:.+}", serve)
