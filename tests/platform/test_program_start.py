"""A loop ends while a program is being started, at any of the moments that a start has."""

import asyncio
import os
import threading
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import rlboost_jax
from rlboost_jax.platform import program_start
from rlboost_jax.platform.program_start import start_program
from rlboost_jax.providers.external_program import run_program
from tests.patience import PATIENCE_SECONDS

MOMENTS = range(6)  # passes of the loop: by the last it has started
PROGRAM = ("sleep", "600")
HURRY_SECONDS = 0.1


class Crash(RuntimeError):
    pass


def crashes(start: Callable[[], Awaitable[object]], moment: int) -> None:
    """A loop whose main task breaks so many passes after something was begun in another."""

    async def main() -> None:
        task = asyncio.ensure_future(start())
        for _ in range(moment):
            await asyncio.sleep(0)
        assert not task.done()
        raise Crash

    with pytest.raises(Crash):
        asyncio.run(main())


def in_time(story: Callable[[], None]) -> None:
    """In a thread, which a test that hangs leaves behind."""
    errors: list[BaseException] = []

    def played() -> None:
        try:
            story()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=played, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "it hangs"
    assert not errors, errors


async def started(**options: int) -> None:
    process = await start_program(*PROGRAM, give_up_seconds=HURRY_SECONDS, **options)
    try:
        await process.wait()
    finally:
        process.kill()
        await process.wait()


async def ran(given: str) -> None:
    await run_program(PROGRAM, timeout_seconds=600.0, environment=os.environ, given=given)


@pytest.mark.parametrize(
    "start",
    [
        lambda: started(stdin=DEVNULL),
        lambda: started(stdin=PIPE, stdout=PIPE),
        lambda: ran(""),
        lambda: ran("something to read"),
    ],
    ids=["no pipe", "pipes", "program", "program that is given something"],
)
def test_a_loop_that_breaks_ends(start: Callable[[], Awaitable[object]]) -> None:
    for moment in MOMENTS:
        in_time(lambda moment=moment: crashes(start, moment))  # type: ignore[misc]


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_that_is_cancelled_leaves_no_process(moment: int) -> None:
    """While the loop goes on: the one that was started holds a pipe until it is gone."""

    async def story() -> None:
        source, end = os.pipe()
        os.set_blocking(source, False)
        task = asyncio.create_task(
            start_program(*PROGRAM, give_up_seconds=HURRY_SECONDS, stdin=PIPE, stdout=end)
        )
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        os.close(end)
        if not task.cancelled():  # it had started, and is its caller's
            task.result().kill()
            await task.result().wait()
        while True:
            try:
                assert os.read(source, 1) == b""
                break
            except BlockingIOError:
                await asyncio.sleep(0.01)
        os.close(source)

    in_time(lambda: asyncio.run(story()))


def test_nothing_is_started_in_another_way() -> None:
    package = Path(rlboost_jax.__file__).parent
    found = [p for p in package.rglob("*.py") if "create_subprocess" in p.read_text()]
    assert found == [Path(program_start.__file__)]
