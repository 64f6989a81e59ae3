"""A manager that reads its journal: in bounded memory, and beside answering all that dial."""

import asyncio
import itertools
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from aiohttp.test_utils import TestClient, TestServer

from rlboost_jax import messages as m
from rlboost_jax.manager.events import Record, Shutdown
from rlboost_jax.manager.journal_entries import BatchOpened, Collected, Entry, SegmentBegun
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.journal_files import JournalFiles
from rlboost_jax.manager.service.manager_app import make_app
from rlboost_jax.manager.service.manager_driver import Driver
from rlboost_jax.manager.service.replay import parts_of, replay
from rlboost_jax.platform.record_stream import encode_records
from tests.manager.conftest import HEADERS, SERVER_HEADERS, TOKENS, read
from tests.manager.fakes import RUN, SNAPSHOTS, begin_batch, hello, settings
from tests.patience import PATIENCE_SECONDS

OPENED = BatchOpened(begin=begin_batch(0, 0, "d"), at=0.0)
MEGABYTE = 2**20


def collected(sample: int, tokens: int = 1, start: int = 0) -> Collected:
    return Collected(
        batch=0,
        instance="a",
        samples=m.pack_ids([sample]),
        starts=m.pack_ids([start]),
        counts=tokens.to_bytes(2, "little"),
        tokens=b"\x07\0\0\0" * tokens,
        logprobs=bytes(4 * tokens),
        at=0.5,
    )


class Parts:
    """A journal whose parts come when a test says so."""

    def __init__(self, *parts: Sequence[Entry]) -> None:
        self.left = list(parts)
        self.let = asyncio.Semaphore(0)

    async def __aiter__(self) -> AsyncIterator[Sequence[Entry]]:
        while self.left:
            await self.let.acquire()
            yield self.left.pop(0)


class Recovering:
    """A manager behind a real socket, which has yet to read its journal."""

    def __init__(self, hold_seconds: float) -> None:
        self.records: list[Record] = []
        loop = asyncio.get_running_loop()
        patient = settings(manager__lease_seconds=1e6, manager__progress_seconds=1e6)
        self.driver = Driver(
            Manager(patient, loop.time()), lambda _, r: self.records.append(r), recovers=True
        )
        app = make_app(
            self.driver,
            tokens=TOKENS,
            config=b"{}",
            snapshots=Path(SNAPSHOTS),
            hold_seconds=hold_seconds,
            progress=lambda: " (7 of 9 bytes)",
        )
        self.client: TestClient[Any, Any] = TestClient(TestServer(app))

    async def status(self, route: str) -> tuple[int, str]:
        async with self.client.get(route, headers=HEADERS) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def recovering(hold_seconds: float) -> AsyncIterator[Recovering]:
    here = Recovering(hold_seconds)
    await here.client.start_server()
    try:
        yield here
    finally:
        await here.driver.close()
        await here.client.close()


def test_memory_does_not_grow_with_the_journal(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, RUN)
    with open(tmp_path / "00000001-step-0.journal", "wb") as file:
        file.write(encode_records([SegmentBegun(run_id=RUN), OPENED]))
        for _ in range(96):
            file.write(encode_records([collected(0, 65_535)]))
    assert journal.size() > 48 * MEGABYTE

    async def go_through() -> int:
        return sum([len(part) async for part in parts_of(journal)])

    tracemalloc.start()
    try:
        assert asyncio.run(go_through()) == 98
        assert tracemalloc.get_traced_memory()[1] < 24 * MEGABYTE  # other tests leave threads
    finally:
        tracemalloc.stop()
    assert journal.read_bytes == journal.size() and not journal.damages
    journal.close()


def test_a_manager_that_reads_answers_and_nobody_is_refused() -> None:
    async def story() -> None:
        async with recovering(hold_seconds=0.0) as here:
            parts = Parts([OPENED, collected(1)], [collected(2)])
            reading = asyncio.ensure_future(here.driver.recover(parts.__aiter__()))
            assert (await here.status("/config"))[0] == 200
            for route in ("/status", "/trainer", "/instance"):
                status, said = await here.status(route)
                assert status == 503 and "reads its journal (7 of 9 bytes)" in said
            async with here.client.get("/status") as stranger:
                assert stranger.status == 401, "strangers hear nothing"
            parts.let.release()
            assert (await here.status("/status"))[0] == 503
            parts.let.release()
            await reading
            assert (await here.status("/status"))[0] == 200
            (found,) = [r for r in here.records if r.kind == "recovered"]
            assert found.detail["tokens"] == 2

    asyncio.run(story())


def test_who_dials_meanwhile_is_held_and_then_taken_in() -> None:
    async def story() -> None:
        async with recovering(hold_seconds=PATIENCE_SECONDS) as here:
            parts = Parts([OPENED], [collected(1)])
            reading = asyncio.ensure_future(here.driver.recover(parts.__aiter__()))

            async def join() -> m.Welcome:
                stream = await here.client.ws_connect("/instance", headers=SERVER_HEADERS)
                await stream.send_bytes(m.encode(hello(instance="early")))
                welcome: m.Welcome = await read(stream, m.Welcome, m.decode_to_server)
                return welcome

            joining = asyncio.ensure_future(join())
            assert (await here.status("/config"))[0] == 200
            parts.let.release()
            parts.let.release()
            await reading
            assert (await joining).instance == "early"
            assert [r.instance for r in here.records if r.kind == "joined"] == ["early"]
            assert not [r for r in here.records if r.kind == "lost"]

    asyncio.run(story())


def test_others_have_their_turn_between_entries() -> None:
    """By a clock on which each entry takes 4 ms."""
    now = 0.0
    turns: list[float] = []

    def restore(entry: Entry) -> None:
        nonlocal now
        now += 0.004

    async def other() -> None:
        while True:
            turns.append(now)
            await asyncio.sleep(0)

    async def story() -> None:
        neighbour = asyncio.ensure_future(other())
        parts = Parts([collected(1)] * 100)
        parts.let.release()
        await replay(parts.__aiter__(), restore, ends=lambda: False, clock=lambda: now)
        neighbour.cancel()

    asyncio.run(story())
    assert now > 0.39
    assert max(b - a for a, b in itertools.pairwise(turns)) < 0.02


def test_one_that_is_asked_to_end_reads_no_further() -> None:
    async def story() -> None:
        async with recovering(hold_seconds=0.0) as here:
            parts = Parts([OPENED], [collected(1)], [collected(2)])
            reading = asyncio.ensure_future(here.driver.recover(parts.__aiter__()))
            here.driver.apply(Shutdown("SIGTERM"))
            parts.let.release()
            await reading
            assert len(parts.left) == 2
            assert (await here.driver.finished).code == 0

    asyncio.run(story())


def test_the_disk_is_read_in_a_thread(tmp_path: Path) -> None:
    """One that does not answer would keep everybody unheard."""
    entries = [SegmentBegun(run_id=RUN), OPENED, collected(0)]
    (tmp_path / "00000001-step-0.journal").write_bytes(encode_records(entries))
    readers: list[threading.Thread] = []

    def opened(path: Path) -> IO[bytes]:
        readers.append(threading.current_thread())
        return open(path, "rb")

    async def story() -> list[Entry]:
        parts = parts_of(JournalFiles(tmp_path, RUN, opened=opened))
        return [entry async for part in parts for entry in part]

    assert asyncio.run(story()) == entries
    assert readers and threading.main_thread() not in readers
