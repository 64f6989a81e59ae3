"""Servers of several runs at one path: at most one has the device, whoever bids, comes and goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.rollout.sharing import presider
from rlboost_jax.rollout.sharing.neighbour_protocol import decode_given
from rlboost_jax.rollout.sharing.neighbours import Neighbours
from tests.patience import PATIENCE_SECONDS


class Device:
    """Counts who uses it, and lets everybody wait for a change."""

    def __init__(self) -> None:
        self.used_by: set[str] = set()
        self.together: list[set[str]] = []  # moments with several
        self.changed = asyncio.Event()

    def set(self, name: str, uses: bool) -> None:
        self.used_by = self.used_by | {name} if uses else self.used_by - {name}
        if len(self.used_by) > 1:
            self.together.append(self.used_by)
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def has(self, *names: str) -> None:
        await self.until(lambda: self.used_by == set(names))


class Server:
    """A server as far as its neighbours notice: it takes a while to let go."""

    def __init__(self, device: Device, path: Path, name: str) -> None:
        self.name, self._device = name, device
        self.may_let_go = asyncio.Event()
        self.may_let_go.set()
        self.neighbours = Neighbours(path, self._lend)

    async def _lend(self, lent: bool) -> None:
        if lent and self.name in self._device.used_by:
            await self.may_let_go.wait()
        self._device.set(self.name, not lent)

    @asynccontextmanager
    async def taking_part(self) -> AsyncIterator["Server"]:
        async with self.neighbours.taking_part():
            yield self
        self._device.set(self.name, False)


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("n")
    folder.chmod(0o700)
    return folder / "gpu0"


def test_the_highest_bidder_has_it_once_the_one_before_has_let_go(path: Path) -> None:
    async def run() -> None:
        device = Device()
        one, two = (Server(device, path, name) for name in ("one", "two"))
        async with one.taking_part():
            await device.has("one")
            one.neighbours.bid(1.0)
            async with two.taking_part():
                one.may_let_go.clear()
                two.neighbours.bid(5.0)
                while one.neighbours._given.qsize() == 0 and "one" not in device.used_by:
                    await asyncio.sleep(0)
                assert device.used_by == {"one"}
                one.may_let_go.set()
                await device.has("two")
                one.neighbours.bid(50.0)
                await device.has("one")
                two.neighbours.bid(0.0)
                one.neighbours.bid(0.0)
                two.neighbours.bid(0.001)
                await device.has("two")
            await device.has("one")
        assert not device.together

    asyncio.run(run())


def test_another_presides_when_the_first_goes(path: Path) -> None:
    async def run() -> None:
        device = Device()
        servers = [Server(device, path, name) for name in ("one", "two", "three")]
        async with AsyncExitStack() as stack:
            first = AsyncExitStack()
            await first.enter_async_context(servers[0].taking_part())
            await device.has("one")
            for server in servers[1:]:
                await stack.enter_async_context(server.taking_part())
            servers[0].neighbours.bid(1.0)
            servers[1].neighbours.bid(4.0)
            await device.has("two")
            await first.aclose()
            await device.has("two")
            servers[2].neighbours.bid(40.0)
            await device.has("three")
            servers[2].neighbours.bid(0.0)
            await device.has("two")

    asyncio.run(run())


def test_who_does_not_let_go_is_disconnected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presider, "LET_GO_SECONDS", 0.05)

    async def run() -> None:
        device = Device()
        one, two, three = (Server(device, path, name) for name in ("one", "two", "three"))
        async with one.taking_part(), two.taking_part(), three.taking_part():
            two.neighbours.bid(1.0)
            await device.has("two")
            two.may_let_go.clear()
            three.neighbours.bid(9.0)
            await device.has("two", "three")
            two.may_let_go.set()
            await device.has("three")

    asyncio.run(run())


@pytest.mark.parametrize(
    "line",
    [
        b"{\n",
        b'{"type": "bid", "price": -1}\n',
        b'{"type": "bid", "price": 1e13}\n',
        b'{"type": "weights"}\n',
        b'{"type": "let_go", "turn": 0}\n' + b"x" * 5000 + b"\n",
    ],
)
def test_other_lines_end_a_connection_and_its_bid(path: Path, line: bytes) -> None:
    async def run() -> None:
        device = Device()
        server = Server(device, path, "one")
        async with server.taking_part():
            await device.has("one")
            reader, writer = await _dialled(path)
            writer.write(b'{"type": "bid", "price": 7}\n')
            await device.has()
            writer.write(line)
            await device.has("one")
            async with asyncio.timeout(PATIENCE_SECONDS):
                told = [decode_given(each).yours async for each in reader]
            assert told in ([False], [False, True])
            writer.close()

    asyncio.run(run())


def test_a_word_of_an_earlier_turn_counts_for_nothing(path: Path) -> None:
    """Told to go, to stay, and to go again, it has let go once it answers the last of these."""
    told: list[tuple[bool, int]] = []

    async def run() -> None:
        auction = presider.Presider(clock=lambda: 0.0)
        first = auction.enter(lambda yours, turn: told.append((yours, turn)), lambda: None)
        heard: list[bool] = []
        second = auction.enter(lambda yours, turn: heard.append(yours), lambda: None)
        auction.bid(second, 1.0)
        auction.leave(second)
        second = auction.enter(lambda yours, turn: heard.append(yours), lambda: None)
        auction.bid(second, 1.0)
        assert [yours for yours, _ in told] == [True, False, True, False]
        auction.let_go(first, told[1][1])
        assert True not in heard
        auction.let_go(first, told[3][1])
        assert heard[-1] is True
        auction.close()

    asyncio.run(run())


async def _dialled(path: Path) -> Any:
    while True:
        with contextlib.suppress(OSError):
            return await asyncio.open_unix_connection(path)
        await asyncio.sleep(0)
