"""The forking process, with a few lines in place of what it prepares, and who asks it."""

import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlboost_jax.platform.fork_server import (
    ForkClient,
    ForkEnded,
    ForkRefused,
    ForkReport,
    ForkRequest,
    ForkServer,
    ForkServerReady,
    ForkSignal,
    ForkStarted,
)
from rlboost_jax.platform.frames import frame, receive, send
from tests.patience import PATIENCE_SECONDS

PROGRAM = """
import os, signal, socket, sys
from rlboost_jax.platform.fork_server import ForkServer, ForkServerReady
from rlboost_jax.platform.frames import frame

def run(request, file):
    print("args", request.args, "NPROC", os.environ.get("NPROC"), os.getsid(0) == os.getpid())
    sys.stdout.flush()
    if request.has_file:
        with socket.socket(fileno=file) as line:
            line.sendall(f"{request.name}".encode())
            line.recv(1)
    if request.args[:1] == ("wait",):
        open(request.args[1], "w").close()  # a FIFO: the test sees when this process is at work
        signal.pause()
    return int(request.args[0])

line = socket.socket(fileno=os.dup(0))
line.sendall(frame(ForkServerReady()))
ForkServer(line, run, together=sys.argv[1:] == ["together"]).serve()
"""


class Forking:
    """A forking process, and the other end of its socket."""

    def __init__(self, program: str, *words: str) -> None:
        self.line, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen([sys.executable, "-c", program, *words], stdin=theirs)
        assert self.report() == ForkServerReady()

    def start(self, name: str, *args: str, log: Path | str = "") -> None:
        command = ForkRequest(name=name, args=args, env={"NPROC": "1"}, log=str(log))
        send(self.line.fileno(), command)

    def started(self, name: str, *args: str, log: Path | str = "") -> int:
        """Start a process, and return its id."""
        self.start(name, *args, log=log)
        report = self.report()
        assert isinstance(report, ForkStarted) and report.name == name
        return report.pid

    def report(self) -> ForkReport | None:
        return receive(
            self.line.fileno(),
            ForkReport,  # type: ignore[arg-type]
            timeout=PATIENCE_SECONDS,
        )

    def end(self) -> int:
        self.line.close()
        return self.process.wait(PATIENCE_SECONDS)


@pytest.fixture(params=[(), ("together",)], ids=["apart", "together"])
def server(request: pytest.FixtureRequest) -> Iterator[Forking]:
    forking = Forking(PROGRAM, *request.param)
    yield forking
    forking.end()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_a_process_runs_with_its_arguments_environment_and_log(
    server: Forking, tmp_path: Path
) -> None:
    server.started("a", "5", "x y", log=tmp_path / "a.log")
    assert server.report() == ForkEnded(name="a", code=5)
    assert (tmp_path / "a.log").read_text() == "args ('5', 'x y') NPROC 1 True\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_is_passed_on_and_its_end_reported(
    server: Forking, fifo: Path, number: signal.Signals
) -> None:
    server.started("a", "wait", str(fifo))
    fifo.read_text()  # it is at work
    send(server.line.fileno(), ForkSignal(name="b", number=number))
    send(server.line.fileno(), ForkSignal(name="a", number=number))
    assert server.report() == ForkEnded(name="a", code=-number)


def test_a_kill_from_elsewhere_is_reported(server: Forking, fifo: Path) -> None:
    pid = server.started("a", "wait", str(fifo))
    fifo.read_text()
    os.kill(pid, signal.SIGKILL)
    assert server.report() == ForkEnded(name="a", code=-signal.SIGKILL)


def test_many_are_each_reported_once(server: Forking) -> None:
    for i in range(20):
        server.start(f"s{i}", str(i))
    reports = [server.report() for _ in range(40)]
    ends = {r.name: r.code for r in reports if isinstance(r, ForkEnded)}
    assert ends == {f"s{i}": i for i in range(20)}
    assert sum(isinstance(r, ForkStarted) for r in reports) == 20


def test_a_process_without_a_log_is_refused(server: Forking, tmp_path: Path) -> None:
    server.start("a", "0", log=tmp_path / "not there" / "a.log")
    report = server.report()
    assert isinstance(report, ForkRefused) and "No such file" in report.reason
    server.started("b", "0")


def test_each_has_the_file_of_its_request_and_no_other(server: Forking) -> None:
    """An end is noticed by each other side: no process holds the socket of another."""
    ends = []
    for name in "abc":
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE_SECONDS)
        with theirs:
            request = frame(ForkRequest(name=name, args=("0",), has_file=True))
            socket.send_fds(server.line, [request], [theirs.fileno()])
        ends.append(ours)
    assert [end.recv(9) for end in ends] == [b"a", b"b", b"c"]
    for end in ends:
        end.sendall(b"!")
        assert end.recv(9) == b""
        end.close()


def test_a_fork_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    def no_fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "no fork today")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = set(os.listdir("/proc/self/fd"))
        server = ForkServer(theirs, lambda request, file: 0, together=False, fork=no_fork)
        server._files.append(os.open(os.devnull, os.O_RDONLY))
        server._obey(ForkRequest(name="a", log=str(tmp_path / "a.log"), has_file=True))
        assert set(os.listdir("/proc/self/fd")) == before
        assert b"no fork today" in ours.recv(1000)


@pytest.mark.parametrize("together", [False, True])
def test_processes_live_on_without_it_or_end_with_it(fifo: Path, together: bool) -> None:
    server = Forking(PROGRAM, *(["together"] if together else []))
    pid = server.started("a", "wait", str(fifo))
    fifo.read_text()
    process = os.pidfd_open(pid)
    assert server.end() == 0
    if not together:
        signal.pidfd_send_signal(process, 0)
        signal.pidfd_send_signal(process, signal.SIGKILL)
    assert select.select([process], [], [], PATIENCE_SECONDS)[0], "it runs on"
    os.close(process)


def test_one_that_reads_nothing_counts_as_gone_in_the_end() -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair()
        over = asyncio.get_running_loop().create_future()
        client = ForkClient(ours, hear=lambda report: None, over=over.set_result)
        with theirs, pytest.raises(OSError):
            while True:
                client.say(ForkSignal(name="a" * 1000, number=9))
        assert await over is None
        await client.close()

    asyncio.run(story())


def test_what_is_no_report_ends_the_reading_with_a_mistake() -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        heard, over = loop.create_future(), loop.create_future()
        client = ForkClient(ours, hear=heard.set_result, over=over.set_result)
        with theirs:
            theirs.sendall(frame(ForkEnded(name="a", code=0)))
            assert await heard == ForkEnded(name="a", code=0)
            theirs.sendall(b"nonsense")
            assert await over is not None
        await client.close()
        assert not client.lives

    asyncio.run(story())
