"""What is the local provider's own business: processes, their files, the one that forks them."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from rlboost_jax.platform import process_liveness
from rlboost_jax.platform.frames import FrameTooLong
from rlboost_jax.platform.process_liveness import start_time
from rlboost_jax.providers import local
from rlboost_jax.providers.base import ANY_POOL, Exited, Granted, Listed, Refused, Started
from rlboost_jax.providers.local import LocalProvider
from tests.patience import PATIENCE_SECONDS
from tests.providers.benches import rendezvous

SLEEPER = "import time; time.sleep(600)  # in place of a server of rlboost_jax"
FORKS = """
import signal
from rlboost_jax.rollout.zygote import fork_servers
fork_servers(lambda args: signal.pause())
"""
READY = """
import signal, socket
from rlboost_jax.platform.fork_server import *
from rlboost_jax.platform.frames import frame, receive
line = socket.socket(fileno=0)
line.sendall(frame(ForkServerReady()))
"""
HANGS = READY + "signal.pause()"
TALKS_NONSENSE = READY + "line.recv(1); line.sendall(b'nonsense'); signal.pause()"
FAILS = (
    READY
    + """
receive(0, ForkRequest)
line.sendall(frame(ForkRefused(name="local-1", reason="no memory")))
receive(0, ForkRequest)
"""
)


@pytest.fixture
def left():
    """A process that passes for a server; reaped by this one as init would reap an orphan."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER])
    while not process_liveness.runs(process.pid, process_liveness.start_time(process.pid)):
        assert process.poll() is None  # its command line is there a moment after it has begun
    yield process
    process.kill()
    process.wait()


def note(workdir, name: str, pid: int, started: str) -> None:
    (workdir / "servers").mkdir(exist_ok=True)
    text = json.dumps({"nonce": f"nonce-{name}", "pid": pid, "started": started})
    (workdir / "servers" / name).write_text(text + "\n")


def notes(workdir) -> list[str]:
    return sorted(path.name for path in (workdir / "servers").iterdir())


def open_provider(workdir, program: str = FORKS, **options) -> LocalProvider:
    command = (sys.executable, "-c", program)
    options.setdefault("start_seconds", PATIENCE_SECONDS)
    return LocalProvider(rendezvous(workdir), price_per_hour=1.0, zygote=command, **options)


def play(story) -> None:
    async def limited():
        async with asyncio.timeout(PATIENCE_SECONDS):
            await story()

    asyncio.run(limited())


@pytest.mark.parametrize("end", ["its own", "grace", "none", "close"])
def test_a_server_that_was_left_is_signalled_reported_and_closed(tmp_path, left, end):
    note(tmp_path, "local-7", left.pid, start_time(left.pid))

    async def story():
        provider = open_provider(tmp_path, leave_seconds=PATIENCE_SECONDS)
        assert await provider.list() == (Listed("local-7", "nonce-local-7"),)
        if end == "its own":
            left.kill()
        elif end == "close":
            await provider.close()
        else:
            await provider.terminate("local-7", 1e6 if end == "grace" else 0.0)
        exited = await anext(provider.events())
        assert exited == Exited("local-7", "nonce-local-7", "exit code unknown")
        await provider.close()

    play(story)
    assert left.wait() == -(signal.SIGTERM if end in ("grace", "close") else signal.SIGKILL)
    assert notes(tmp_path) == []


def test_a_process_that_only_has_the_number_is_left_alone(tmp_path, left):
    note(tmp_path, "local-1", left.pid, "another time")
    note(tmp_path, "local-2", 2**22 + 1, "5")  # above every process id
    for name, text in {"local-3": "", "local-4": "{", "local-5": "{}", "local-6": "[1]"}.items():
        (tmp_path / "servers" / name).write_text(text)
    (tmp_path / "servers" / "local-7").write_text(f"{left.pid} another time\n")  # of before nonces

    async def story():
        assert await open_provider(tmp_path).list() == ()

    play(story)
    assert left.poll() is None
    assert notes(tmp_path) == []


def test_a_server_from_before_there_were_nonces_is_ended(tmp_path, left, caplog):
    """It would look for its manager in words that this one does not understand."""
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers" / "local-3").write_text(f"{left.pid} {start_time(left.pid)}\n")

    async def story():
        assert await open_provider(tmp_path).list() == ()

    play(story)
    assert left.wait() == -signal.SIGKILL
    assert [r.getMessage() for r in caplog.records] == [
        "local-3 was started by an earlier version of this program: it is ended"
    ]
    assert notes(tmp_path) == []


def test_servers_outlive_the_process_that_forked_them(tmp_path, left):
    """It was killed, and one of two servers with it."""
    program = READY + "".join(
        f"line.sendall(frame(ForkStarted(name=receive(0, ForkRequest).name, pid={pid})));"
        for pid in (left.pid, 4194305)
    )

    async def story():
        provider = open_provider(tmp_path, program)
        for name in ("local-1", "local-2"):
            await provider.request(name, f"nonce-{name}", ANY_POOL)
        heard = provider.events()
        for name in ("local-1", "local-2"):
            nonce = f"nonce-{name}"
            assert [await anext(heard), await anext(heard)] == [
                Granted(name, nonce),
                Started(name, nonce),
            ]
        assert await anext(heard) == Exited("local-2", "nonce-local-2", "exit code unknown")
        assert await provider.list() == (Listed("local-1", "nonce-local-1"),)
        await provider.terminate("local-1", 0.0)
        assert await anext(heard) == Exited("local-1", "nonce-local-1", "exit code unknown")
        await provider.close()

    play(story)


def test_a_server_without_a_note_works_as_well(tmp_path, caplog):
    (tmp_path / "servers").write_text("a file where their folder should be")

    async def story():
        provider = open_provider(tmp_path)
        await provider.request("local-1", "n", ANY_POOL)
        heard = provider.events()
        assert isinstance(await anext(heard), Granted) and isinstance(await anext(heard), Started)
        await provider.terminate("local-1", 0.0)
        assert await anext(heard) == Exited("local-1", "n", "exit code -9", -signal.SIGKILL)
        await provider.close()
        assert "no record of local-1" in caplog.text

    play(story)


def test_a_fork_that_fails_is_a_refusal(tmp_path):
    async def story():
        provider = open_provider(tmp_path, FAILS)
        await provider.request("local-1", "n", ANY_POOL)
        assert await anext(provider.events()) == Refused("local-1", "n", "no memory")
        await provider.close()

    play(story)


def test_a_zygote_that_does_not_come_up_is_a_refusal(tmp_path):
    async def story():
        provider = open_provider(tmp_path, "raise ZeroDivisionError")
        await provider.request("local-1", "n", ANY_POOL)
        refused = await anext(provider.events())
        assert "ended with code 1 as it began" in refused.reason and "zygote.log" in refused.reason
        await provider.close()

    play(story)
    assert "ZeroDivisionError" in (tmp_path / "logs" / "zygote.log").read_text()


def test_a_zygote_that_makes_no_sense_ends_every_start(tmp_path):
    async def story():
        provider = open_provider(tmp_path, TALKS_NONSENSE)
        await provider.request("local-1", "n", ANY_POOL)
        heard = provider.events()
        assert "reports no more" in (await anext(heard)).reason
        with pytest.raises(FrameTooLong):
            await anext(heard)
        heard = provider.events()
        await provider.request("local-2", "o", ANY_POOL)
        assert (await anext(heard)).reason == "the run is over"
        await provider.close()

    play(story)


def test_a_server_that_starts_too_late_is_ended(tmp_path):
    """It was refused, and nothing more is said of it."""

    async def story():
        provider = open_provider(tmp_path, start_seconds=0.0)
        await provider.request("local-1", "n", ANY_POOL)
        assert await provider.list() == ()
        heard = provider.events()
        assert await anext(heard) == Refused("local-1", "n", "no word of its start in 0 s")
        await provider.close()
        assert [event async for event in heard] == []

    play(story)
    assert not (tmp_path / "servers").exists() or notes(tmp_path) == []


def test_a_termination_reaches_a_server_whose_zygote_has_just_died(tmp_path):
    async def story():
        provider = open_provider(tmp_path)
        await provider.request("local-1", "n", ANY_POOL)
        provider._forks._process.kill()
        await provider.terminate("local-1", 0.0)
        heard = provider.events()
        assert isinstance(await anext(heard), Granted) and isinstance(await anext(heard), Started)
        assert await anext(heard) == Exited("local-1", "n", "exit code unknown")
        await provider.close()

    play(story)


def test_a_zygote_that_does_not_leave_is_killed(tmp_path):
    async def story():
        provider = open_provider(tmp_path, HANGS, leave_seconds=0.05)
        await provider._forks.open()
        await provider.close()
        assert provider._forks._process.returncode == -signal.SIGKILL

    play(story)


DIES = """
import sys
from rlboost_jax.rollout import zygote
from tests.patience import PATIENCE_SECONDS
zygote.END_SECONDS = PATIENCE_SECONDS
def run(args):
    print("looking around", flush=True)
    print("this host's DNS does not know 'head'", file=sys.stderr, flush=True)
    return 2
zygote.fork_servers(run)
"""


def test_the_last_lines_of_a_server_stand_with_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "TAIL_SECONDS", PATIENCE_SECONDS)

    async def story():
        provider = open_provider(tmp_path, DIES)
        await provider.request("local-1", "nonce", ANY_POOL)
        heard = provider.events()
        while not isinstance(event := await anext(heard), Exited):
            pass
        assert event.log == ("looking around", "this host's DNS does not know 'head'")
        assert event.reason == "exit code 2: this host's DNS does not know 'head'"
        await provider.close()

    play(story)
