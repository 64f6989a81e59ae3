"""The process that serves weights: who may have what, and what becomes of it and of pulls."""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rlboost_jax.messages import FileEntry, Manifest, PieceList
from rlboost_jax.platform.process_liveness import start_time
from rlboost_jax.platform.restarts import Restarts
from rlboost_jax.trust.credentials import Endpoint
from rlboost_jax.weights.arrivals import ByteCounter, FilesInMemory, FileSource
from rlboost_jax.weights.connections import Connections
from rlboost_jax.weights.download import download
from rlboost_jax.weights.file_server import file_server_process
from rlboost_jax.weights.file_server.file_server_orders import (
    MAX_ORDER_BYTES,
    FileServerSetup,
    order_frame,
    read_order,
)
from rlboost_jax.weights.file_server.file_server_process import (
    SILENCE_SECONDS,
    FileServer,
    listening_socket,
)
from rlboost_jax.weights.piece_lists import listed, write_list
from rlboost_jax.weights.serve import weights_url
from tests.endpoints import endpoint
from tests.patience import PATIENCE_SECONDS

Run = Callable[..., Any]
SETUP = FileServerSetup(server_token="secret", trainer_token="more secret", authority="")
AT_ONCE = Restarts(most_starts=None, first_pause_seconds=0.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may be slow to hear that a process has ended."""
    monkeypatch.setattr(file_server_process, "LEAVE_SECONDS", PATIENCE_SECONDS)


LARGE = 64 * 2**20  # bytes: more than the sockets on the way hold


def snapshot(folder: Path, version: int, **files: bytes) -> Manifest:
    """A version on disk, and a file beside it that its manifest does not name."""
    place = folder / str(version)
    place.mkdir(parents=True)
    (place / "unnamed").write_bytes(b"nobody may read this")
    for name, content in files.items():
        (place / name).write_bytes(content)
    entries = tuple(
        FileEntry(path=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )
    pieces = PieceList(files=entries, leaves=())
    return write_list(place, pieces, version=version, params_digest="d")


@asynccontextmanager
async def serving(
    *manifests: Manifest,
    reports: list[str] | None = None,
    command: tuple[str, ...] = (),
    restarts: Restarts = AT_ONCE,
    silence_seconds: float = SILENCE_SECONDS,
) -> AsyncIterator[FileServer]:
    failed = asyncio.get_running_loop().create_future()
    reported = reports if reports is not None else []
    options = {"command": command} if command else {}
    files = FileServer(
        listening_socket("127.0.0.1", 0),
        SETUP,
        reported.append,
        failed.set_exception,
        restarts=restarts,
        silence_seconds=silence_seconds,
        **options,
    )
    files.serve(manifests)
    try:
        yield files
    finally:
        await files.close()
        failed.cancel()


async def status(files: FileServer, path: str, token: str | None = "secret") -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{files.port}{path}"
        async with session.get(url, headers=headers) as answer:
            await answer.read()
            return answer.status


def test_files_of_announced_versions_for_who_bears_a_token(tmp_path: Path, run: Run) -> None:
    async def story() -> None:
        first, second = (snapshot(tmp_path, v, a=b"x" * 9) for v in (1, 2))
        async with serving(first) as files:
            assert files.pid is None, "nobody has asked for anything"
            for token in (None, "", "wrong"):
                assert await status(files, "/weights/1", token) == 401
            for token in ("secret", "more secret"):
                assert await status(files, "/weights/1", token) == 200
            for path in ("/weights/1/a", "/weights/1/..%2f2%2fa", "/weights/2", "/status"):
                assert await status(files, path) == 404
            files.serve([second])
            assert await status(files, "/weights/2") == 200
            assert await status(files, "/weights/1") == 404

    run(story())


class Wire:
    """Between a puller and its file server; shows what comes down."""

    def __init__(self, port: int, seen: Callable[[int], None]) -> None:
        self._port, self._seen = port, seen

    async def __aenter__(self) -> Endpoint:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return endpoint(f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}")

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", self._port)

        async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(2**16):
                    if source is up:
                        self._seen(len(data))
                    target.write(data)
                    await target.drain()
            target.transport.abort() if source is up else target.close()

        await asyncio.gather(pass_on(reader, down), pass_on(up, writer))


def test_a_pull_goes_on_when_the_process_is_killed(tmp_path: Path, run: Run) -> None:
    """It resumes where it was cut off, at the same port, with the next process."""

    async def story() -> None:
        manifest = snapshot(tmp_path, 7, large=os.urandom(LARGE))
        came, killed, reports = 0, [], []

        def seen(size: int) -> None:
            nonlocal came
            came += size
            if came > LARGE // 4 * (len(killed) + 1) and len(killed) < 2:
                assert files.pid is not None and files.pid not in killed
                killed.append(files.pid)
                os.kill(files.pid, signal.SIGKILL)

        async with (
            serving(manifest, reports=reports) as files,
            Wire(files.port, seen) as there,
            Connections().to(there) as (session, retries),
        ):
            # It raises for a digest that is not the manifest's.
            source = FileSource(url=weights_url(7), files=listed(manifest).files, wanted={"large"})
            await download([source], session, FilesInMemory(), ByteCounter(), retries)
        assert len(killed) == 2 and reports == ["was ended by SIGKILL"] * 2
        assert came < 1.5 * LARGE, "it began anew"

    run(story())


async def gone(pid: int) -> None:
    while start_time(pid):
        await asyncio.sleep(0.01)


def test_it_ends_with_its_orders(tmp_path: Path, run: Run) -> None:
    """The end of the pipe is all that a killed manager can say, where the kernel says no more."""

    async def story() -> None:
        async with serving(snapshot(tmp_path, 1, a=b"x")) as files:
            assert await status(files, "/weights/1") == 200
            pid = files.pid
        assert pid is not None
        await gone(pid)

    run(story())


def test_one_that_cannot_work_is_reported_and_tried_again_when_wanted(run: Run) -> None:
    async def story() -> None:
        reports: list[str] = []
        broken = (sys.executable, "-c", "raise SystemExit(3)")
        async with serving(reports=reports, command=broken) as files:
            await asyncio.open_connection("127.0.0.1", files.port)  # it waits there all the time
            while len(reports) < 3:
                await asyncio.sleep(0.01)
        assert set(reports) == {"ended with code 3"}

    run(story())


def test_one_that_stands_still_is_ended(run: Run) -> None:
    once = Restarts(first_pause_seconds=1e6, longest_pause_seconds=1e6)

    async def story() -> None:
        reports: list[str] = []
        asleep = (sys.executable, "-c", "import signal; signal.pause()")
        async with serving(
            reports=reports, command=asleep, restarts=once, silence_seconds=0.1
        ) as files:
            await asyncio.open_connection("127.0.0.1", files.port)
            while files.pid is None:
                await asyncio.sleep(0.001)
            pid = files.pid
            await gone(pid)
            while not reports:
                await asyncio.sleep(0.001)
        assert reports == ["was silent for 0.1 s"]

    run(story())


@pytest.mark.parametrize(
    "data",
    [
        (MAX_ORDER_BYTES + 1).to_bytes(4, "little"),
        b"\x01\x00\x00\x00\xc0",
        order_frame(SETUP).replace(b"secret", b"\xff\xff\xff\xff\xff\xff"),
    ],
    ids=["too long", "no order", "no text"],
)
def test_what_is_no_order_is_an_error(run: Run, data: bytes) -> None:
    async def story() -> None:
        pipe = asyncio.StreamReader()
        pipe.feed_data(order_frame(SETUP) + data)
        pipe.feed_eof()
        assert await read_order(pipe) == SETUP
        with pytest.raises(ValueError):
            await read_order(pipe)

    run(story())
