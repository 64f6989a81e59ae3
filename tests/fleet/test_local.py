"""Servers that a killed manager has left, under the provider of the next."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from rlboost_jax.fleet.local import LocalProvider, _start_time

SLEEPER = "import time; time.sleep(600)  # in place of a server of rlboost_jax"
PATIENCE_SECONDS = 60


@pytest.fixture
def left():
    """A process that passes for a server; reaped by this one as init would reap an orphan."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER])
    yield process
    process.kill()
    process.wait()


def record(workdir, name: str, pid: int, started: int) -> None:
    (workdir / "servers").mkdir(exist_ok=True)
    (workdir / "servers" / name).write_text(f"{pid} {started}\n")


def provider(workdir, exits: asyncio.Queue) -> LocalProvider:
    return LocalProvider(
        workdir,
        "127.0.0.1:9",
        workdir / "token",
        price_per_hour=1.0,
        on_exit=lambda *exit: exits.put_nowait(exit),
    )


@pytest.mark.parametrize("end", ["its own", "signal", "close"])
def test_a_server_that_was_left_is_signalled_reported_and_closed(tmp_path, left, end):
    record(tmp_path, "local-7", left.pid, _start_time(left.pid))

    async def scenario():
        exits: asyncio.Queue = asyncio.Queue()
        fleet = provider(tmp_path, exits)
        assert fleet.adopt() == ["local-7"]
        assert fleet.pids == {"local-7": left.pid}
        if end == "its own":
            left.kill()
        elif end == "signal":
            assert await fleet.signal("local-7", signal.SIGTERM)
        else:
            await fleet.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await exits.get() == ("local-7", "unknown")
        assert fleet.pids == {} and not await fleet.signal("local-7", signal.SIGTERM)
        await fleet.close()

    asyncio.run(scenario())
    assert not list((tmp_path / "servers").iterdir())


def test_a_process_that_only_has_the_number_is_left_alone(tmp_path, left):
    record(tmp_path, "local-1", left.pid, _start_time(left.pid) + 1)
    record(tmp_path, "local-2", 2**22 + 1, 5)  # above every process id
    (tmp_path / "servers" / "local-3").write_text("")

    async def scenario():
        assert provider(tmp_path, asyncio.Queue()).adopt() == []

    asyncio.run(scenario())
    assert left.poll() is None
    assert not list((tmp_path / "servers").iterdir())


def test_servers_outlive_the_process_that_forked_them(tmp_path, left):
    async def scenario():
        exits: asyncio.Queue = asyncio.Queue()
        fleet = provider(tmp_path, exits)
        reports = asyncio.StreamReader()
        for name, pid in (("local-1", left.pid), ("local-2", 2**22 + 1)):
            reports.feed_data(json.dumps({"started": name, "pid": pid}).encode() + b"\n")
        reports.feed_eof()  # it was killed, and local-2 with it
        await fleet._read(reports)
        assert fleet.pids == {"local-1": left.pid}
        assert exits.get_nowait() == ("local-2", "unknown")
        assert await fleet.signal("local-1", signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await exits.get() == ("local-1", "unknown")

    asyncio.run(scenario())
