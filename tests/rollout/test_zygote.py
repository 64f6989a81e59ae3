"""The forking process, with a few lines in place of a rollout server."""

import errno
import json
import os
import select
import signal
import subprocess
import sys

import pytest

from rlboost_jax.rollout.zygote import Zygote
from tests.patience import PATIENCE_SECONDS

PROGRAM = """
import os, signal, sys
from rlboost_jax.rollout import zygote
from tests.patience import PATIENCE_SECONDS

zygote.END_SECONDS = PATIENCE_SECONDS

def run(args):
    print("args", args, "NPROC", os.environ.get("NPROC"), "session", os.getsid(0) == os.getpid())
    if args[0] == "fail":
        raise ZeroDivisionError("in the server")
    if args[0] == "exit":
        sys.exit(7)
    if args[0] == "wait":
        sys.stdout.flush()
        open(args[1], "w").close()  # a FIFO: the test sees when this process is at work
        signal.pause()
    return int(args[0])

zygote.Zygote(run, 0, 1).serve()
"""


class Process:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # `select` sees what is in the pipe, not what was read ahead
        )
        assert "ready" in self.report()

    def tell(self, line: bytes) -> None:
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def start(self, name, log, *args) -> None:
        command = {"start": name, "args": list(args), "env": {"NPROC": "1"}, "log": str(log)}
        self.tell(json.dumps(command).encode())

    def report(self) -> dict:
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
        assert ready, "no report"
        return json.loads(self.process.stdout.readline())

    def end(self) -> int:
        self.process.stdin.close()
        return self.process.wait(PATIENCE_SECONDS)


@pytest.fixture
def zygote():
    process = Process()
    yield process
    if process.process.poll() is None:
        process.end()
    process.process.stdout.close()


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_a_server_runs_with_its_arguments_environment_and_log(zygote, tmp_path):
    zygote.start("a", tmp_path / "a.log", "5", "x y")
    started = zygote.report()
    exited = zygote.report()
    assert started == {"started": "a", "pid": started["pid"]}
    assert exited == {"exited": "a", "pid": started["pid"], "code": 5}
    log = (tmp_path / "a.log").read_text()
    assert log == "args ['5', 'x y'] NPROC 1 session True\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_is_reported(zygote, tmp_path, fifo, number):
    zygote.start("a", tmp_path / "a.log", "wait", str(fifo))
    pid = zygote.report()["pid"]
    fifo.read_text()  # it is at work
    zygote.tell(json.dumps({"signal": "a", "number": int(number)}).encode())
    assert zygote.report() == {"exited": "a", "pid": pid, "code": -number}


def test_a_kill_from_elsewhere_is_reported(zygote, tmp_path, fifo):
    zygote.start("a", tmp_path / "a.log", "wait", str(fifo))
    pid = zygote.report()["pid"]
    fifo.read_text()
    os.kill(pid, signal.SIGKILL)
    assert zygote.report() == {"exited": "a", "pid": pid, "code": -9}


def test_many_are_each_reported_once(zygote, tmp_path):
    for i in range(20):
        zygote.start(f"s{i}", tmp_path / f"{i}.log", str(i))
    reports = [zygote.report() for _ in range(40)]
    exits = {r["exited"]: r["code"] for r in reports if "exited" in r}
    assert exits == {f"s{i}": i for i in range(20)}
    assert sum("started" in r for r in reports) == 20


def test_an_exception_is_an_exit_and_in_the_log(zygote, tmp_path):
    zygote.start("a", tmp_path / "a.log", "fail")
    zygote.report()
    assert zygote.report()["code"] == 1
    assert "ZeroDivisionError: in the server" in (tmp_path / "a.log").read_text()


def test_the_exit_code_of_sys_exit_counts(zygote, tmp_path):
    zygote.start("a", tmp_path / "a.log", "exit")
    zygote.report()
    assert zygote.report()["code"] == 7


def test_a_server_that_cannot_start_is_reported(zygote, tmp_path):
    zygote.start("a", tmp_path / "not there" / "a.log", "0")
    report = zygote.report()
    assert report["failed"] == "a" and "No such file" in report["reason"]


def test_a_fork_that_fails_leaves_no_log_open(tmp_path):
    def no_fork():
        raise BlockingIOError(errno.EAGAIN, "no fork today")

    reports, reported = os.pipe()
    before = set(os.listdir("/proc/self/fd"))
    Zygote(int, 0, reported, fork=no_fork)._start("a", [], {}, str(tmp_path / "a.log"))
    assert set(os.listdir("/proc/self/fd")) == before
    assert b"no fork today" in os.read(reports, 1000)
    os.close(reports)
    os.close(reported)


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"start": "a"}', b'{"signal": "a"}', b"7"])
def test_a_line_that_is_no_command_is_reported_and_passed_over(zygote, tmp_path, line):
    zygote.tell(line)
    assert "unreadable command" in zygote.report()["reason"]
    zygote.start("a", tmp_path / "a.log", "0")
    assert "started" in zygote.report()


def test_the_servers_live_on_when_it_ends(zygote, tmp_path, fifo):
    zygote.start("a", tmp_path / "a.log", "wait", str(fifo))
    pid = zygote.report()["pid"]
    fifo.read_text()
    assert zygote.end() == 0
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


def test_what_it_imports_initialises_no_backend():
    program = (
        "import threading, flax.nnx, tensorstore; from rlboost_jax.rollout import server;"
        "from jax._src import xla_bridge as bridge;"
        "print(bridge.backends_are_initialized(), threading.active_count())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.split() == ["False", "1"], ran.stderr
