"""Folders for pieces that other servers fetch here: gone with their process, however it ends."""

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from rlboost_jax.weights.spool import Spool, lock_folder, new_folder, spooled


async def held(folder, spool=None):
    """Whether there is a spool while it is needed."""
    async with spooled(folder, 0, spool) as path:
        return path.is_dir()


def test_a_spool_that_was_never_locked_is_gone_with_the_next(tmp_path):
    """As where a process is killed on its way."""

    def no_locks(_):
        raise OSError(errno.ENOLCK, "no locks available")

    with pytest.raises(OSError, match="no locks"):
        asyncio.run(held(tmp_path, Spool(lock=no_locks)))
    assert any(tmp_path.iterdir())
    assert asyncio.run(held(tmp_path))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("moment", ["opened", "locked"])
def test_a_spool_taken_for_an_orphan_before_it_is_locked(tmp_path, moment):
    made: list[Path] = []

    def make(parent):
        made.append(new_folder(parent))
        if len(made) == 1 and moment == "opened":
            made[0].rmdir()
        return made[-1]

    def lock(descriptor):
        if len(made) == 1 and moment == "locked":
            made[0].rmdir()
        lock_folder(descriptor)

    assert asyncio.run(held(tmp_path, Spool(make, lock)))
    assert len(made) == 2 and not any(path.exists() for path in made)


def test_a_spool_that_nobody_waits_for_any_more_is_gone(tmp_path):
    entered, go_on = threading.Event(), threading.Event()

    def make(parent):
        entered.set()
        go_on.wait()
        return new_folder(parent)

    async def scenario():
        holding = asyncio.create_task(held(tmp_path, Spool(make)))
        await asyncio.to_thread(entered.wait)
        holding.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await holding

    asyncio.run(scenario())
    assert not any(tmp_path.iterdir())
