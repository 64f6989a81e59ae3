"""A folder of wheels, for hosts without the package: listed with their digests, and served.

`rlboost_jax/cli/bootstrap.py` is the other side.
"""

import asyncio
import hashlib
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from rlboost_jax.messages import FileEntry
from rlboost_jax.platform.private_paths import code_folder
from rlboost_jax.weights.compiled import INDEX
from rlboost_jax.weights.compiled import URL as COMPILED_URL

URL: Final = "/wheels"


class Wheelhouse:
    """Entries of a folder of wheels, read again when the folder has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[str, int, int], FileEntry] = {}  # name, size, time of change

    def entries(self) -> list[FileEntry]:
        """List the wheels. Blocks. Raises OSError."""
        found = []
        for path in sorted(self._folder.glob("*.whl")):
            state = path.stat()
            key = (path.name, state.st_size, state.st_mtime_ns)
            if key not in self._known:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                self._known[key] = FileEntry(path=path.name, size=state.st_size, sha256=digest)
            found.append(self._known[key])
        return found


def check_place(folder: str) -> None:
    """Check who can write to a wheelhouse: its content runs on every server started from it.

    Args:
        folder: `fleet.wheelhouse`; "": there is none.

    Raises:
        NotOurs: another user could put wheels there.
    """
    if folder and (place := Path(folder).expanduser()).is_dir():
        code_folder(place, "fleet.wheelhouse")


def add_delivery_routes(app: web.Application, *, compiled: str, wheels: str) -> None:
    """Serve compiled programs and wheels; who may ask is for the application's middleware.

    Args:
        compiled: folder of the run's; "": there are none.
        wheels: `fleet.wheelhouse`; "": there is none.
    """
    house, one = Wheelhouse(Path(wheels)), asyncio.Lock()

    async def listed() -> list[FileEntry]:
        if not wheels:
            raise web.HTTPNotFound(text="this run has no fleet.wheelhouse\n")
        async with one:
            return await asyncio.to_thread(house.entries)

    async def list_wheels(request: web.Request) -> web.Response:
        body = msgspec.json.encode(await listed())
        return web.Response(body=body, content_type="application/json")

    async def get_wheel(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in {entry.path for entry in await listed()}:
            raise web.HTTPNotFound(text=f"there is no wheel {name!r}\n")
        return web.FileResponse(Path(wheels) / name, chunk_size=2**20)

    async def get_compiled(request: web.Request) -> web.StreamResponse:
        path = Path(compiled) / request.match_info.get("digest", INDEX)
        if not compiled or not await asyncio.to_thread(path.is_file):
            raise web.HTTPNotFound(text="no such compiled program\n")
        return web.FileResponse(path, chunk_size=2**20)

    app.router.add_get(URL, list_wheels)
    app.router.add_get(URL + r"/{name:[\w.+-]+\.whl}", get_wheel)
    app.router.add_get(COMPILED_URL, get_compiled)
    app.router.add_get(COMPILED_URL + "/{digest:[0-9a-f]{64}}", get_compiled)
