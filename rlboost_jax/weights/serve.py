"""Snapshot files over HTTP, for servers that do not see the learner's disk."""

from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from rlboost_jax.messages import Manifest

Lookup = Callable[[int], Manifest | None]


def weights_url(version: int, path: str) -> str:
    """Path of a snapshot's file below the manager's address."""
    return f"/weights/{version}/{path}"


def add_routes(app: web.Application, lookup: Lookup) -> None:
    """Serve `GET /weights/{version}/{path}`, whole or by one byte range.

    Only files that a known manifest names are served, wherever else the path may point.
    Who may ask is for the application's middleware to decide.

    Args:
        lookup: the manifest of a version that was announced, else None.
    """

    async def serve(request: web.Request) -> web.StreamResponse:
        version, path = request.match_info["version"], request.match_info["path"]
        manifest = lookup(int(version))
        if manifest is None:
            raise web.HTTPNotFound(text=f"version {version} is not known here")
        if not any(entry.path == path for entry in manifest.files):
            raise web.HTTPNotFound(text=f"version {version} has no file {path!r}")
        file = Path(manifest.directory) / path
        if not file.is_file():
            raise web.HTTPNotFound(text=f"file {path!r} of version {version} is gone")
        return web.FileResponse(file, chunk_size=2**20)

    app.router.add_get(r"/weights/{version:\d{1,18}}/{path:.+}", serve)
