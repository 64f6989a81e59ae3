"""The provider: servers that it starts, and those that a killed manager has left."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from rlboost_jax import processes
from rlboost_jax.fleet.local import LocalProvider, ServerNotStarted
from rlboost_jax.processes import start_time

SLEEPER = "import time; time.sleep(600)  # in place of a server of rlboost_jax"
PATIENCE_SECONDS = 60
FORKS = """
import signal
from rlboost_jax.fleet.zygote import Zygote
Zygote(lambda args: signal.pause(), 0, 1).serve()
"""
READY = "import signal, sys; print('{\"ready\": 1}', flush=True); "
HANGS = READY + "signal.pause()"
TALKS_NONSENSE = READY + "sys.stdin.readline(); print('nonsense', flush=True); sys.stdin.read()"


@pytest.fixture
def left():
    """A process that passes for a server; reaped by this one as init would reap an orphan."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER])
    while not processes.runs(process.pid, processes.start_time(process.pid)):
        assert process.poll() is None  # its command line is there a moment after it has begun
    yield process
    process.kill()
    process.wait()


def record(workdir, name: str, pid: int, started: str) -> None:
    (workdir / "servers").mkdir(exist_ok=True)
    (workdir / "servers" / name).write_text(f"{pid} {started}\n")


def provider(
    workdir, exits: asyncio.Queue, program: str = "", on_failure=None, **options
) -> LocalProvider:
    """One whose zygote is a program; "": the real one."""
    if program:
        options["zygote"] = (sys.executable, "-c", program)
    return LocalProvider(
        workdir,
        "127.0.0.1:9",
        workdir / "token",
        price_per_hour=1.0,
        on_exit=lambda *exit: exits.put_nowait(exit),
        on_failure=on_failure or pytest.fail,
        **options,
    )


async def next_exit(exits: asyncio.Queue) -> tuple[str, int | str]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await exits.get()


@pytest.mark.parametrize("end", ["its own", "signal", "close"])
def test_a_server_that_was_left_is_signalled_reported_and_closed(tmp_path, left, end):
    record(tmp_path, "local-7", left.pid, start_time(left.pid))

    async def scenario():
        exits: asyncio.Queue = asyncio.Queue()
        fleet = provider(tmp_path, exits)
        assert fleet.adopt() == {"local-7": left.pid}
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
    record(tmp_path, "local-1", left.pid, "another time")
    record(tmp_path, "local-2", 2**22 + 1, "5")  # above every process id
    (tmp_path / "servers" / "local-3").write_text("")

    async def scenario():
        assert provider(tmp_path, asyncio.Queue()).adopt() == {}

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


def test_a_server_without_a_record_works_as_well(tmp_path, caplog):
    (tmp_path / "servers").write_text("a file where their folder should be")

    async def scenario():
        exits: asyncio.Queue = asyncio.Queue()
        fleet = provider(tmp_path, exits, FORKS)
        assert await fleet.start("local-1") == fleet.pids["local-1"]
        assert "no record of local-1" in caplog.text
        await fleet.signal("local-1", signal.SIGKILL)
        assert await next_exit(exits) == ("local-1", -signal.SIGKILL)
        await fleet.close()

    asyncio.run(scenario())


def test_a_zygote_that_makes_no_sense_ends_every_start(tmp_path):

    async def scenario():
        failure = asyncio.get_running_loop().create_future()
        fleet = provider(tmp_path, asyncio.Queue(), TALKS_NONSENSE, failure.set_result)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ServerNotStarted, match="reports no more"):
                await fleet.start("local-1")
            assert isinstance(await failure, ValueError)
            with pytest.raises(ServerNotStarted, match="the run is over"):
                await fleet.start("local-2")
            await fleet.close()

    asyncio.run(scenario())


def test_a_server_that_starts_too_late_is_ended(tmp_path):
    async def scenario():
        exits: asyncio.Queue = asyncio.Queue()
        fleet = provider(tmp_path, exits, FORKS, start_seconds=0.0)
        with pytest.raises(ServerNotStarted, match="no word of its start in 0 s"):
            await fleet.start("local-1")
        assert await next_exit(exits) == ("local-1", -signal.SIGKILL)
        await fleet.close()

    asyncio.run(scenario())


def test_a_signal_reaches_a_server_whose_zygote_has_just_died(tmp_path):

    async def scenario():
        exits: asyncio.Queue = asyncio.Queue()
        fleet = provider(tmp_path, exits, FORKS)
        await fleet.start("local-1")
        fleet._zygote.kill()
        assert await fleet.signal("local-1", signal.SIGKILL)
        assert await next_exit(exits) == ("local-1", "unknown")
        await fleet.close()

    asyncio.run(scenario())


def test_the_end_finds_a_server_that_is_being_started(tmp_path):

    async def scenario():
        exits: asyncio.Queue = asyncio.Queue()
        fleet = provider(tmp_path, exits, FORKS)
        await fleet.open()
        starting = asyncio.create_task(fleet.start("local-1"))
        await asyncio.sleep(0)  # it has been asked for
        await fleet.close()
        assert await starting and fleet.pids == {}
        assert await next_exit(exits) == ("local-1", -signal.SIGTERM)
        with pytest.raises(ServerNotStarted, match="the run is over"):
            await fleet.start("local-2")

    asyncio.run(scenario())


def test_a_zygote_that_does_not_leave_is_killed(tmp_path):
    async def scenario():
        fleet = provider(tmp_path, asyncio.Queue(), HANGS, leave_seconds=0.05)
        await fleet.open()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await fleet.close()
        assert fleet._zygote.returncode == -signal.SIGKILL

    asyncio.run(scenario())
