"""A server's budget socket, with an engine whose tokens are known and a manager that listens."""

import asyncio
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlboost_jax import messages
from rlboost_jax.engine.shared import Resized, Wants
from rlboost_jax.messages import Capacity, Released, TokenBatch
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.sharing import pace
from rlboost_jax.rollout.sharing.shared_server import SharedServer
from rlboost_jax.rollout.sharing.socket import (
    SocketUnusable,
    check_place,
    peer_uid,
    tenants_heard,
)
from rlboost_jax.rollout.sharing.tenant_protocol import (
    MAX_LINE_BYTES,
    BudgetOrder,
    OrderRefused,
    Promise,
    State,
    StateAsked,
    TenantQueue,
    decode_answer,
    encode_line,
)
from rlboost_jax.sequences.identities import Version
from tests.patience import PATIENCE_SECONDS

PAGES, PAGE_BYTES, PAGE_TOKENS, SLOTS = 16, 100, 4, 4
WHOLE = PAGES * PAGE_BYTES


def shared_engine(fake: type) -> Any:
    """The fake engine with slots and pages; its victims are the last that came."""

    class Shared(fake):  # type: ignore[misc,valid-type]
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.slots, self.num_pages, self.limit = SLOTS, PAGES, SLOTS
            self.allowed: list[Any] = []
            self.layout = SimpleNamespace(
                num_pages=PAGES, page_size=PAGE_TOKENS, decode_rows=(8,), token_rows=16
            )
            self.programs = SimpleNamespace(max_steps=4)
            self.last = SimpleNamespace(mixed=False, work=[SimpleNamespace(budget=4)])

        @property
        def device_state(self) -> Any:
            return SimpleNamespace(pool_bytes=self.num_pages * PAGE_BYTES)

        @property
        def wants(self) -> Wants:
            return Wants(ready=len(self._left), prefill_tokens=0)

        def allow(self, allowance: Any) -> None:
            self.allowed.append(allowance)

        def resize(self, slots: int, num_pages: int) -> Resized:
            assert not self._launched
            before, self.num_pages, self.limit = self.num_pages, num_pages, slots
            gone = tuple(list(self._left)[slots:])
            self.release(list(gone))
            return Resized(
                slots=slots,
                num_pages=num_pages,
                pool_bytes=num_pages * PAGE_BYTES,
                freed_bytes=(before - num_pages) * PAGE_BYTES,
                released=gone,
                tokens=7 * len(gone),
                moved_pages=0,
            )

    return Shared


class Tenant:
    """A process that speaks JSON lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def tell(self, order: Any) -> None:
        self.writer.write(encode_line(order) + b"\n")
        await self.writer.drain()

    async def answer(self) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await self._reader.readline()
        return decode_answer(line) if line else None

    async def ask(self, order: Any) -> Any:
        await self.tell(order)
        return await self.answer()


class Place:
    """A worker, what it emits, and its socket."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine, self.path = engine, folder / "budget.sock"
        self.emitted: queue.Queue[Any] = queue.Queue()
        self.sharing = SharedServer(engine)
        self.worker = EngineWorker(engine, turns=self.sharing)

    @asynccontextmanager
    async def serving(self, user_of: Callable[[Any], int] = peer_uid) -> AsyncIterator["Place"]:
        self.sharing.serve(self.worker)
        self.worker.start(self.emitted.put)
        await asyncio.wrap_future(self.worker.load({}, Version(1), "d1"))
        async with tenants_heard(self.path, self.sharing, user_of=user_of):
            yield self
        self.worker.stop()

    async def tenant(self) -> Tenant:
        return Tenant(*await asyncio.open_unix_connection(self.path, limit=2**20))

    async def said(self, kind: type) -> Any:
        while not isinstance(
            message := await asyncio.to_thread(self.emitted.get, timeout=PATIENCE_SECONDS), kind
        ):
            pass
        return message


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("own")
    place.chmod(0o700)
    return place


@pytest.fixture
def place(fakes: Any, folder: Path) -> Callable[..., Place]:
    return lambda **settings: Place(shared_engine(fakes.Engine)(**settings), folder)


def test_an_order_waits_for_one_dispatch_and_says_what_became_of_it(
    place: Callable[..., Place], fakes: Any
) -> None:
    """The dispatch under way ends, no second begins, and then it is so."""
    gate = threading.Semaphore(0)

    async def run() -> None:
        async with place(steps=1, gate=gate, ahead=True).serving() as here:
            here.worker.submit([fakes.request(i, tokens=50) for i in (1, 2, 3)], "d1")
            await here.said(TokenBatch)  # in flight
            tenant = await here.tenant()
            await tenant.tell(BudgetOrder(slots=1, pool_bytes=4 * PAGE_BYTES + 1))
            while not here.sharing._turn.locked():
                await asyncio.sleep(0)
            while here.worker._commands.empty():
                await asyncio.sleep(0)
            gate.release()
            state = await tenant.answer()
            assert (state.slots, state.pool_bytes) == (1, 4 * PAGE_BYTES)
            assert (state.victims, state.tokens, state.frozen) == (2, 14, True)
            assert state.freed_bytes == 12 * PAGE_BYTES and state.dispatches == 1
            said = await here.said(Capacity)
            assert (said.slots, said.cache_tokens) == (1, 4 * PAGE_TOKENS)
            assert messages.unpack_ids(said.request_ids).tolist() == [2, 3] and said.frozen
            gate.release(100)

    asyncio.run(run())


def test_what_ends_before_the_loop_hears_of_it_is_not_counted(
    place: Callable[..., Place], fakes: Any
) -> None:
    """The engine goes on at once, however long the event loop is held up."""
    gate = threading.Semaphore(0)

    async def run() -> None:
        async with place(steps=1, gate=gate).serving() as here:
            here.worker.submit([fakes.request(1, tokens=50)], "d1")
            await here.said(TokenBatch)  # in flight
            tenant = await here.tenant()
            answer = asyncio.create_task(tenant.ask(BudgetOrder(slots=2)))
            while here.worker._commands.empty():
                await asyncio.sleep(0)
            gate.release(20)
            while here.worker.sampled < 20 and not here.worker.failure.done():  # the loop waits
                time.sleep(0.001)
            assert (await answer).dispatches <= 1
            gate.release(100)

    asyncio.run(run())


def test_growth_comes_with_the_next_step(place: Callable[..., Place], fakes: Any) -> None:
    async def run() -> None:
        async with place(steps=4).serving() as here:
            here.worker.submit([fakes.request(1, tokens=4)], "d1")
            await here.said(TokenBatch)  # by now it is heard that parameters were loaded
            tenant = await here.tenant()
            assert (await tenant.ask(BudgetOrder(slots=2))).slots == 2
            await here.said(Capacity)
            assert (await tenant.ask(BudgetOrder(slots=3))).slots == 2
            assert (await tenant.ask(BudgetOrder())).slots == 2
            state = await tenant.ask(BudgetOrder(slots=3))
            assert state.frozen and state.pool_bytes == WHOLE
            await asyncio.wrap_future(here.worker.load({}, Version(2), "d2"))
            said = await here.said(Capacity)
            assert (said.slots, said.frozen) == (3, False)
            while (await tenant.ask(StateAsked())).slots != 3:
                pass
            assert (await tenant.ask(BudgetOrder())).slots == SLOTS, "nothing shrank since"

    asyncio.run(run())


def test_a_tenant_that_is_gone_wants_nothing(place: Callable[..., Place]) -> None:
    async def run() -> None:
        async with place().serving() as here:
            first, second = await here.tenant(), await here.tenant()
            assert (await first.ask(BudgetOrder(slots=2))).slots == 2
            assert (await second.ask(BudgetOrder(slots=0))).slots == 0
            second.writer.close()
            await asyncio.wrap_future(here.worker.load({}, Version(2), "d2"))
            while (await here.said(Capacity)).slots != 2:
                pass
            while (await first.ask(StateAsked())).slots != 2:  # the loop hears of it a bit later
                pass

    asyncio.run(run())


def test_without_slots_work_is_given_back_at_once(place: Callable[..., Place], fakes: Any) -> None:
    async def run() -> None:
        async with place().serving() as here:
            tenant = await here.tenant()
            assert (await tenant.ask(BudgetOrder(slots=0))).slots == 0
            here.worker.submit([fakes.request(9, tokens=5)], "d1")
            back = await here.said(Released)
            assert messages.unpack_ids(back.request_ids).tolist() == [9]

    asyncio.run(run())


def test_nothing_runs_while_a_token_of_the_tenant_would_be_late(
    place: Callable[..., Place], fakes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "STARVED_SECONDS", PATIENCE_SECONDS)

    async def run() -> None:
        async with place(steps=1).serving() as here:
            tenant = await here.tenant()
            await tenant.ask(Promise(first_token_seconds=3600.0, token_seconds=3600.0))
            await tenant.tell(TenantQueue(dues=((0.0, 1.0, True),)))
            await tenant.ask(StateAsked())  # it was heard
            here.worker.submit([fakes.request(1, tokens=3)], "d1")
            while here.sharing.pace.denied < 3:
                await asyncio.sleep(0.01)
            assert here.worker.sampled == 0
            await tenant.tell(TenantQueue(dues=()))
            while here.worker.sampled < 3:
                await asyncio.sleep(0.01)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"type":"budget","slots":-1}\n', "slots"),
        (b'{"type":"sleep"}\n', "Invalid value"),
        (b"\x80\x04\x95 a pickle\n", "malformed"),
        (b'{"type":"queue","dues":[]}\n', "a queue before a promise"),
        (b'{"type":"promise","first_token_seconds":NaN,"token_seconds":1}\n', "malformed"),
        (b"x" * (MAX_LINE_BYTES + 10) + b"\n", "a line of over"),
    ],
)
def test_other_words_end_the_connection(
    place: Callable[..., Place], line: bytes, what: str
) -> None:
    async def run() -> None:
        async with place().serving() as here:
            tenant = await here.tenant()
            tenant.writer.write(line)
            answer = await tenant.answer()
            assert isinstance(answer, OrderRefused) and what in answer.reason
            assert await tenant.answer() is None
            assert isinstance(await (await here.tenant()).ask(StateAsked()), State)

    asyncio.run(run())


def test_another_users_process_is_not_listened_to(place: Callable[..., Place]) -> None:
    async def run() -> None:
        async with place().serving(lambda connection: os.geteuid() + 1) as here:
            tenant = await here.tenant()
            await tenant.tell(BudgetOrder(slots=0))
            assert await tenant.answer() == OrderRefused(reason="another user's process")
            assert here.sharing.state.slots == SLOTS

    asyncio.run(run())


def test_the_kernel_says_who_it_is(folder: Path) -> None:
    import socket

    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer_uid(ours) == os.geteuid()


def test_only_a_place_that_is_this_users_alone(folder: Path) -> None:
    path = folder / "budget.sock"
    folder.chmod(0o755)
    with pytest.raises(SocketUnusable, match="mode 755"):
        check_place(path)
    folder.chmod(0o700)
    path.write_text("something else")
    with pytest.raises(SocketUnusable, match="no socket"):
        check_place(path)
    assert path.read_text() == "something else"
    with pytest.raises(SocketUnusable, match="longer than"):
        check_place(folder / ("x" * 120))
    path.unlink()
    check_place(folder / "new" / "budget.sock")
    assert (folder / "new").stat().st_mode & 0o777 == 0o700


def test_a_socket_left_by_a_dead_server_is_taken_away_and_a_living_ones_is_not(
    place: Callable[..., Place], folder: Path
) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(folder / "budget.sock"))

    async def run() -> None:
        async with place().serving() as here:
            assert here.path.stat().st_mode & 0o777 == 0o600
            with pytest.raises(SocketUnusable, match="another process's"):
                check_place(here.path)
            assert isinstance(await (await here.tenant()).ask(StateAsked()), State)
        assert not here.path.exists()

    asyncio.run(run())


def test_what_another_run_has_comes_back_within_the_step(
    place: Callable[..., Place], fakes: Any
) -> None:
    """Orders of tenants count all the while, and are frozen as ever."""

    async def run() -> None:
        async with place(steps=1, ahead=True).serving() as here:
            here.worker.submit([fakes.request(1, tokens=10_000_000)], "d1")
            await here.said(TokenBatch)
            await here.sharing.lend(True)
            said = await here.said(Capacity)
            assert (said.slots, said.frozen) == (0, False)
            assert messages.unpack_ids(said.request_ids).tolist() == [1]
            tenant = await here.tenant()
            await tenant.ask(BudgetOrder(slots=2))
            await here.sharing.lend(False)
            while (said := await here.said(Capacity)).slots == 0:
                pass
            assert said.slots == 2 and said.frozen

    asyncio.run(run())
