"""What a server says of its machine's end, and by when it is gone."""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from configs import tiny
from rlboost_jax.messages import Announce, Generate, Goodbye, Hint, Leave, Notice, Renewed, Welcome
from rlboost_jax.rollout import server
from rlboost_jax.rollout.client import InstanceClient
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.settings.config_loading import run_config
from tests.patience import PATIENCE_SECONDS

POLITE = {"leave_seconds": PATIENCE_SECONDS}  # for the goodbye


def test_a_notice_and_a_hint_are_passed_on(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights(), **POLITE) as (
            manager,
            client,
            running,
        ):
            stream = await fakes.ready(manager)
            client.notice(60.0, "aws: terminate")
            client.hint("aws: rebalance")
            assert await stream.next() == Notice(seconds=60.0, reason="aws: terminate")
            assert await stream.next() == Hint(reason="aws: rebalance")
            await stream.send(Leave(reason="aws: terminate"))
            assert await stream.next() == Goodbye(reason="aws: terminate")
            assert await running == "aws: terminate"

    asyncio.run(scenario())


def test_only_an_earlier_notice_is_news(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights()) as (manager, client, _):
            stream = await fakes.ready(manager)
            for seconds in (60.0, 61.0, 30.0, 59.0):
                client.notice(seconds, "x")
            assert [(await stream.next()).seconds for _ in range(2)] == [60.0, 30.0]

    asyncio.run(scenario())


def test_the_next_manager_hears_what_is_left_of_a_notice(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights()) as (manager, client, _):
            stream = await fakes.ready(manager)
            client.notice(60.0, "x")
            await stream.next()
            await manager.drop(stream)
            again, _ = await manager.accept()
            notice = await again.next()
            assert isinstance(notice, Notice) and 0 < notice.seconds < 60.0

    asyncio.run(scenario())


def test_a_server_works_until_the_end_it_gave_itself(fakes):
    """No manager tells it to leave: it flushes, says goodbye and goes all the same."""

    async def scenario():
        async with fakes.serving(fakes.Engine(steps=1), fakes.Weights(), **POLITE) as (
            manager,
            client,
            running,
        ):
            stream = await fakes.ready(manager)
            await stream.send(Generate(params_digest="d1", requests=(fakes.request(1, tokens=20),)))
            client.notice(0.2, "SIGUSR1")
            *_, goodbye = await stream.until(Goodbye)
            assert goodbye == Goodbye(reason="SIGUSR1")
            assert await running == "SIGUSR1"

    asyncio.run(scenario())


def test_a_server_without_a_manager_goes_with_its_machine(fakes):
    async def scenario():
        client = InstanceClient(
            lambda: ("127.0.0.1:9", "t"),
            fakes.hello(),
            EngineWorker(fakes.Engine()),
            None,
            orphan_seconds=1e6,
        )
        running = asyncio.create_task(client.run())
        client.notice(0.0, "gcp: preempted")
        assert await running == "gcp: preempted"

    asyncio.run(scenario())


def test_renewals_echo_the_newest_stamp(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights()) as (manager, _, _):
            manager.welcome = Welcome(
                instance="i", renew_seconds=0.01, orphan_seconds=30.0, stamp=7.0
            )
            stream, _ = await manager.accept()
            assert (await stream.next_renew()).echo == 7.0
            for stamp in (8.0, 9.0):
                await stream.send(Renewed(stamp=stamp))
            while (echo := (await stream.next_renew()).echo) != 9.0:
                assert echo in (7.0, 8.0)
            await manager.drop(stream)
            manager.welcome = replace_stamp(manager.welcome, 1.0)  # another clock
            stream, _ = await manager.accept()
            assert (await stream.next_renew()).echo == 1.0

    asyncio.run(scenario())


def replace_stamp(welcome, stamp):
    return Welcome(
        instance=welcome.instance,
        renew_seconds=welcome.renew_seconds,
        orphan_seconds=welcome.orphan_seconds,
        stamp=stamp,
    )


def test_parameters_that_cannot_be_loaded_are_reported(fakes):
    """As when the device has no memory left for them."""

    class Full(fakes.Engine):
        def load(self, params, version):
            raise MemoryError("no room\nfor a second buffer")

    async def scenario():
        async with fakes.serving(Full(), fakes.Weights()) as (manager, _, running):
            stream, _ = await manager.accept()
            await stream.send(Announce(manifest=fakes.manifest(1)))
            assert await stream.next() == Goodbye(
                reason="failed: MemoryError: no room for a second buffer", failed=True
            )
            with pytest.raises(MemoryError):
                await running

    asyncio.run(scenario())


# Signals


class Client:
    """Hears what signals lead to."""

    def __init__(self):
        self.heard = asyncio.Queue()

    def leave(self, reason):
        self.heard.put_nowait(("leave", reason))

    def notice(self, seconds, reason):
        self.heard.put_nowait(("notice", seconds, reason))


def heard_after(signals, *, setting=("SIGTERM", 0.0), flags=(None, None)):
    name, seconds = setting
    config = run_config(tiny.get_config())
    fleet = replace(config.fleet, notice_signal=name, notice_seconds=seconds)
    args = argparse.Namespace(notice_signal=flags[0], notice_seconds=flags[1])

    async def scenario():
        client = Client()
        server._heed_signals(args, fleet, client)
        heard = []
        for number in signals:
            os.kill(os.getpid(), number)
            heard.append(await asyncio.wait_for(client.heard.get(), PATIENCE_SECONDS))
        return heard

    return asyncio.run(scenario())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_bare_signal_means_now(number):
    assert heard_after([number]) == [("leave", number.name)]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_a_signal_with_grace_is_a_notice_and_the_second_means_now(name):
    number = signal.Signals[name]
    assert heard_after([number, number, signal.SIGINT], setting=(name, 25.0)) == [
        ("notice", 25.0, name),
        ("leave", name),
        ("leave", "SIGINT"),
    ]


def test_flags_go_before_settings():
    heard = heard_after(
        [signal.SIGUSR2, signal.SIGTERM], setting=("SIGTERM", 25.0), flags=("SIGUSR2", 90.0)
    )
    assert heard == [("notice", 90.0, "SIGUSR2"), ("leave", "SIGTERM")]
    assert heard_after([signal.SIGTERM], setting=("SIGTERM", 25.0), flags=(None, 0.0)) == [
        ("leave", "SIGTERM")
    ]


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "86401", "x"])
def test_impossible_seconds_are_refused_on_the_command_line(capsys, seconds):
    with pytest.raises(SystemExit):
        server.main(["--manager=x:1", "--join=x", f"--notice_seconds={seconds}"])
    assert "--notice_seconds" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "error, said",
    [(RuntimeError("can't start new thread"), "ulimit -u"), (MemoryError(), "memory")],
)
def test_what_a_host_lacks_is_one_line(
    error: Exception,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lacking(folder: object) -> object:
        raise error

    monkeypatch.setattr(server, "read_credentials", lacking)
    assert server.main(["--manager=host:1", "--join=/nowhere"]) == server.FAILED_EXIT_CODE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rollout server at host:1: failed: ") and said in line


CLOSING = """
import asyncio, os, signal
from rlboost_jax.rollout.server import _heed_no_more

class Loop(asyncio.SelectorEventLoop):
    def _close_self_pipe(self):
        super()._close_self_pipe()
        os.kill(os.getpid(), signal.SIGTERM)

async def leave():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)
    {}

loop = Loop()
loop.run_until_complete(leave())
loop.close()
"""


def test_a_signal_while_it_leaves_is_no_traceback():
    def said(last: str) -> str:
        command = [sys.executable, "-c", CLOSING.format(last)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert "Bad file descriptor" in said("pass")
    assert said("_heed_no_more()") == ""
