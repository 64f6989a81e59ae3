"""Compiled programs from the owner's hosts: sealed, checked, and worth a compile at most."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlboost_jax.messages import FileEntry
from rlboost_jax.trust.credentials import Credentials, Endpoint
from rlboost_jax.trust.seal import public_of
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.compiled import (
    INDEX,
    CompiledIndex,
    fetch_compiled,
    offer,
    read_index,
    sealed_index,
)
from rlboost_jax.weights.wheels import add_delivery_routes
from tests.patience import PATIENCE_SECONDS

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def made(tmp_path: Path, key: Ed25519PrivateKey = KEY) -> tuple[Path, Path]:
    """A trainer's cache with two programs, and what is offered of it."""
    cache, folder = tmp_path / "owner", tmp_path / "compiled"
    cache.mkdir()
    for name in ("jit_step-1-cache", "jit_load-2-cache", "jit_of_the_learner-3-cache"):
        (cache / name).write_bytes(name.encode() * 50)
    names = ["jit_step-1-cache", "jit_load-2-cache", "jit_step-1-cache", "never-kept-cache"]
    assert offer(folder, "cpu", cache, names, key) == 2 * 16 * 50
    return cache, folder


def fetched(folder: Path, cache: Path, kind: str = "cpu", seconds: float = PATIENCE_SECONDS) -> str:
    async def story() -> str:
        app = web.Application()
        add_delivery_routes(app, compiled=str(folder), wheels="")
        async with TestServer(app) as server:
            credentials = Credentials(token="secret", seal=public_of(KEY))
            there = Endpoint(address=f"127.0.0.1:{server.port}", credentials=credentials)
            return await fetch_compiled(there, kind, cache, seconds=seconds)

    cache.mkdir(exist_ok=True)
    return asyncio.run(story())


def test_a_server_gets_the_engines_programs_once(tmp_path: Path) -> None:
    owner, folder = made(tmp_path)
    cache = tmp_path / "server"
    assert fetched(folder, cache).startswith("2 of 2 compiled programs fetched")
    found = {path.name: path.read_bytes() for path in cache.iterdir()}
    wanted = ("jit_step-1-cache", "jit_load-2-cache")
    assert found == {name: (owner / name).read_bytes() for name in wanted}
    assert fetched(folder, cache).startswith("0 of 2 compiled programs fetched")
    assert "no compiled programs for this kind" in fetched(folder, tmp_path / "other", "h100")


def test_kinds_of_several_hosts_stand_side_by_side(tmp_path: Path) -> None:
    owner, folder = made(tmp_path)
    offer(folder, "h100", owner, ["jit_of_the_learner-3-cache"], KEY)
    index = read_index((folder / INDEX).read_bytes(), public_of(KEY))
    assert {kind: len(entries) for kind, entries in index.kinds.items()} == {"cpu": 2, "h100": 1}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / INDEX).unlink(),
        lambda folder: (folder / INDEX).write_bytes(b"\x93nonsense"),
        lambda folder: offer(
            folder, "cpu", folder.parent / "owner", ["jit_step-1-cache"], STRANGER
        ),
        lambda folder: flip(folder / INDEX, -200),
        lambda folder: [flip(path, 3) for path in folder.iterdir() if path.name != INDEX],
        lambda folder: [path.unlink() for path in folder.iterdir() if path.name != INDEX],
        lambda folder: [
            path.write_bytes(bytes(9_999)) for path in folder.iterdir() if path.name != INDEX
        ],
    ],
)
def test_what_is_spoilt_costs_a_compile(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    _, folder = made(tmp_path)
    spoil(folder)
    cache = tmp_path / "server"
    assert "compiling" in fetched(folder, cache)
    assert not list(cache.iterdir()), "nothing of it is kept"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["../up", "/abs", ".hidden", "new\nline"])
def test_no_index_names_a_file_elsewhere(name: str) -> None:
    entry = FileEntry(path=name, size=1, sha256=hashlib.sha256(b"x").hexdigest())
    index = sealed_index(CompiledIndex(kinds={"cpu": (entry,)}), KEY)
    with pytest.raises(WeightsError, match="unsafe"):
        read_index(msgspec.msgpack.encode(index), public_of(KEY))


def test_a_server_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    async def story() -> str:
        async def nothing(request: web.Request) -> web.Response:
            await asyncio.Event().wait()
            raise AssertionError

        app = web.Application()
        app.router.add_get("/compiled", nothing)
        async with TestServer(app) as server:
            credentials = Credentials(token="secret", seal=public_of(KEY))
            there = Endpoint(address=f"127.0.0.1:{server.port}", credentials=credentials)
            return await fetch_compiled(there, "cpu", tmp_path, seconds=0.05)

    pending: Awaitable[str] = story()
    assert "compiling" in asyncio.run(pending)  # type: ignore[arg-type]
