"""What is said after what is kept, and who waits for a disk that stands still: nobody's lease."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax import messages as m
from rlboost_jax.manager.events import Action, Append, DiskWaited, Record, Send, Tick
from rlboost_jax.manager.journal_entries import BatchClosed, Entry
from rlboost_jax.manager.service.disk_writer import DiskWriter
from rlboost_jax.manager.service.journal_files import JournalFiles
from rlboost_jax.manager.service.manager_driver import Driver
from tests.manager.conftest import Open, join, open_trainer, read
from tests.manager.fakes import RUN, batch, begin_batch, ready, response
from tests.patience import PATIENCE_SECONDS

Run = Callable[..., Any]


class Script:
    """A manager that wants done what the test wants."""

    def __init__(self) -> None:
        self.actions: list[Action] = []

    def handle(self, event: object, now: float) -> list[Action]:
        return [] if isinstance(event, DiskWaited) else self.actions  # this test's own are due

    def next_deadline(self) -> None:
        return None


def line(number: int) -> Record:
    return Record("x", number, "", {})


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3))))
def test_an_action_waits_for_all_that_must_be_kept_before_it(
    events: list[tuple[bool, int, int]],
) -> None:
    """Events with something to keep or without, each of some actions; between two events some
    of the writes end."""

    async def story() -> None:
        writing: list[Callable[[str], None]] = []
        done: list[int] = []
        due: list[int] = []  # of each action, how many writes must have ended
        begun = ended = 0

        def record(_: float, line: Record) -> None:
            assert line.step == len(done), "out of order"
            assert due[line.step] <= ended, "said before it was kept"
            done.append(line.step)

        manager = Script()
        driver = Driver(manager, record, lambda _, through: writing.append(through))  # type: ignore[arg-type]

        def end_one() -> None:
            nonlocal ended
            ended += 1
            writing.pop(0)("")
            assert len(done) == sum(writes <= ended for writes in due), "kept back"

        for keeps, count, ends in events:
            begun += keeps
            numbers = range(len(due), len(due) + count)
            due += [begun] * count
            entries = [Append((BatchClosed(batch=0),))] if keeps else []
            manager.actions = [*entries, *map(line, numbers)]
            driver.apply(Tick())
            for _ in range(min(ends, len(writing))):
                end_one()
        while writing:
            end_one()
        assert done == list(range(len(due)))

    asyncio.run(story())


def test_an_answer_to_a_renewal_waits_for_no_disk() -> None:
    async def story() -> None:
        manager, sent = Script(), []
        driver = Driver(manager, lambda *_: None, lambda *_: None)  # type: ignore[arg-type]
        driver.send = lambda stream, message: sent.append(message)  # type: ignore[method-assign]
        leave, renewed = m.Leave(reason=""), m.Renewed(stamp=1.0)
        manager.actions = [Append((BatchClosed(batch=0),)), Send(1, leave), Send(1, renewed)]
        driver.apply(Tick())
        assert [type(message) for message in sent] == [m.Renewed]

    asyncio.run(story())


class Disk:
    """Writes that end when they are let."""

    def __init__(self, *, stands: bool = False) -> None:
        self.writes: list[list[Entry]] = []
        self.began, self._goes = threading.Semaphore(0), threading.Event()
        if not stands:
            self._goes.set()

    def append(self, entries: Sequence[Entry]) -> str:
        self.writes.append(list(entries))
        self.began.release()
        assert self._goes.wait(PATIENCE_SECONDS)
        return "" if len(self.writes) > 1 else "it was full"

    def go(self) -> None:
        self._goes.set()


def closed(step: int) -> tuple[Entry]:
    return (BatchClosed(batch=step),)


def test_what_comes_while_the_disk_stands_still_is_written_at_once_after(run: Run) -> None:
    async def story() -> None:
        loop, disk = asyncio.get_running_loop(), Disk(stands=True)
        through: list[tuple[int, str]] = []
        lines: list[int] = []
        all_through = loop.create_future()

        def done(number: int, problem: str) -> None:
            assert threading.current_thread() is threading.main_thread()
            through.append((number, problem))
            if number == 3:
                all_through.set_result(None)

        with DiskWriter(disk.append, lambda _, line: lines.append(line.step), _fail) as writer:
            writer.append(closed(0), partial(done, 0))
            await asyncio.to_thread(disk.began.acquire)
            for number in (1, 2, 3):
                writer.record(0.0, line(number))
                writer.append(closed(number), partial(done, number))
            assert not through
            disk.go()
            await all_through
        assert disk.writes == [[*closed(0)], [*closed(1), *closed(2), *closed(3)]]
        assert through == [(0, "it was full"), (1, ""), (2, ""), (3, "")]
        assert lines == [1, 2, 3]

    run(story())


def test_lines_of_events_that_too_many_wait_before_are_dropped_and_counted(run: Run) -> None:
    async def story() -> None:
        disk, lines = Disk(stands=True), list[tuple[str, int, Any]]()

        def record(_: float, line: Record) -> None:
            lines.append((line.kind, line.step, line.detail))

        with DiskWriter(disk.append, record, _fail, max_lines=3) as writer:
            writer.append(closed(0), lambda problem: None)
            await asyncio.to_thread(disk.began.acquire)
            for number in range(8):
                writer.record(0.0, line(number))
            disk.go()
        assert lines == [
            ("x", 0, {}),
            ("dropped", 0, {"lines": 5}),
            ("x", 1, {}),
            ("x", 2, {}),
        ]

    run(story())


def test_a_line_of_events_that_cannot_be_written_ends_nothing(run: Run) -> None:
    async def story() -> None:
        lines: list[int] = []

        def record(_: float, line: Record) -> None:
            if line.step == 0:
                raise OSError("no space left")
            lines.append(line.step)

        with DiskWriter(Disk().append, record, _fail) as writer:
            for number in range(3):
                writer.record(0.0, line(number))
        assert lines == [1, 2]

    run(story())


def test_a_mistake_in_the_thread_is_heard_of(run: Run) -> None:
    async def story() -> None:
        failed = asyncio.get_running_loop().create_future()
        writer = DiskWriter(lambda _: str(1 / 0), lambda *_: None, failed.set_exception)
        writer.append(closed(0), lambda _: None)
        with pytest.raises(ZeroDivisionError):
            await failed

    run(story())


def test_leases_are_renewed_while_the_journals_disk_stands_still(
    loopback: Open, run: Run, tmp_path: Path
) -> None:
    """And what the journal does not have yet is sent to nobody."""

    async def story() -> None:
        began, goes = threading.Event(), threading.Event()
        goes.set()

        def write(descriptor: int, data: memoryview) -> int:
            assert threading.current_thread() is not threading.main_thread(), "in the loop"
            if not goes.is_set():
                began.set()
                assert goes.wait(PATIENCE_SECONDS)
            return os.write(descriptor, data)

        journal = JournalFiles(tmp_path / "journal", RUN, write=write)
        journal.read()
        writer = DiskWriter(journal.append, lambda *_: None, _fail)
        async with loopback(keep=writer.append) as loop:
            trainer, server = await open_trainer(loop), await join(loop, reserved=True)
            await server.send_bytes(m.encode(ready(0)))
            await trainer.send_bytes(m.encode(begin_batch(0, 0, "d", prompts=1)))
            requests = (await read(server, m.Generate, m.decode_to_server)).requests
            rows = [(r.request_id, list(response("d", 0, r.work.sample))) for r in requests]
            goes.clear()
            await server.send_bytes(m.encode(batch(0, 0, rows)))
            assert await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
            for _ in range(3):  # on the stream that the tokens came on: they are taken in
                await server.send_bytes(m.encode(m.Renew()))
                await read(server, m.Renewed, m.decode_to_server)
            assert loop.driver._effects.waiting, "sent before it is kept"
            goes.set()
            finished = [await read(trainer, m.FinishedRollout, m.decode_to_trainer) for _ in rows]
            assert {f.work for f in finished} == {r.work for r in requests}
            await server.close()
        writer.close()
        journal.close()

    run(story())


def _fail(error: BaseException) -> None:
    raise error
