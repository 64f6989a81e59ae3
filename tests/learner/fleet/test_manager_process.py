"""Finding, starting and ending a real manager process."""

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from configs import tiny
from rlboost_jax.learner.fleet import manager_process
from rlboost_jax.learner.fleet.manager_process import (
    ManagerMisconfigured,
    ManagerNotStarted,
    ManagerProcess,
)
from rlboost_jax.platform import exits
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.platform.process_liveness import start_time
from rlboost_jax.platform.restarts import Restarts
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.trust.authority import server_tls
from rlboost_jax.trust.credentials import read_credentials
from rlboost_jax.trust.run_files import ManagerRecord, only_manager, read_record, recorded
from rlboost_jax.trust.seal import public_of
from tests.certificates import make_run
from tests.patience import PATIENCE_SECONDS
from tests.workdirs import begun


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return begun(tmp_path)


@pytest.fixture
def process(workdir: Path) -> Iterator[ManagerProcess]:
    process = ManagerProcess(workdir, "run", answer_seconds=PATIENCE_SECONDS)
    yield process
    process.dismiss()


def record(workdir: Path) -> ManagerRecord:
    found = read_record(workdir)
    assert found is not None
    return found


class Counted(ManagerProcess):
    """Calls `started`, `before_asking` and `asked` with the number of starts, and of questions, so
    far."""

    started: Callable[[int], None] = staticmethod(lambda times: None)
    asked: Callable[[int], None] = staticmethod(lambda times: None)
    before_asking: Callable[[int], None] = staticmethod(lambda times: None)
    starts = questions = 0

    def _start(self):
        child = super()._start()
        self.starts += 1
        self.started(self.starts)
        return child

    def _answering(self):
        self.before_asking(self.questions)
        found = super()._answering()
        self.questions += 1
        self.asked(self.questions)
        return found


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_one_manager_for_all_who_ask(
    workdir: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")  # leads nowhere, and is for other addresses
    process = Counted(workdir, "run", answer_seconds=PATIENCE_SECONDS)
    request.addfinalizer(process.dismiss)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: process.locate(), range(4)))
    assert len(set(found)) == process.starts == 1
    assert found[0].address == record(workdir).local_address
    token = found[0].credentials.token
    assert token == (workdir / "trainer" / "token").read_text()
    servers = read_credentials(workdir / "join", environment={})
    assert public_of(process.seal_key()) == servers.seal and servers.token != token
    assert ManagerProcess(workdir, "run", answer_seconds=PATIENCE_SECONDS).locate() == found[0]


def test_it_is_dismissed_and_the_next_is_another(
    process: ManagerProcess, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_process, "LEAVE_SECONDS", PATIENCE_SECONDS)
    process.locate()
    before = record(workdir)
    process.dismiss()
    assert not before.lives and not (workdir / "manager.json").exists()
    process.locate()
    assert record(workdir).pid != before.pid


def test_one_that_stands_still_is_waited_for(process: ManagerProcess, workdir: Path) -> None:
    """It is neither replaced nor joined by a second, which would end the run."""
    found = process.locate()
    before = record(workdir)
    again = Counted(workdir, "run", answer_seconds=PATIENCE_SECONDS, ask_seconds=0.01)

    def wake(times: int) -> None:
        if times == 3:
            os.kill(before.pid, signal.SIGCONT)
            again._ask_seconds = PATIENCE_SECONDS

    again.asked = wake
    os.kill(before.pid, signal.SIGSTOP)
    assert again.locate() == found
    assert again.starts == 0, "a second was started"
    assert record(workdir) == before


def test_one_that_stands_still_for_too_long_is_named(
    process: ManagerProcess, workdir: Path
) -> None:
    process.locate()
    pid = record(workdir).pid
    hasty = ManagerProcess(workdir, "run", answer_seconds=0.05, ask_seconds=0.01)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ManagerNotStarted, match=rf"process {pid}\) lives and has not answered"):
            hasty.locate()
    finally:
        os.kill(pid, signal.SIGCONT)


def test_one_that_has_no_processor_is_waited_for(
    workdir: Path, request: pytest.FixtureRequest
) -> None:
    """A busy host may take longer to let it begin than it may take to answer."""
    clock = itertools.chain((0.0, 0.0), itertools.count(step=100.0))  # from its start on
    process = Counted(
        workdir,
        "run",
        answer_seconds=30.0,
        clock=lambda: next(clock),
        waited=lambda pid: 1e9,
    )
    request.addfinalizer(process.dismiss)
    process.locate()
    assert process.starts == 1 and process.questions > 1


def test_one_that_another_trainer_has_just_started_is_waited_for(
    workdir: Path, request: pytest.FixtureRequest
) -> None:
    """It has the lock and does not listen yet: a second one finds that out and leaves."""
    process = Counted(workdir, "run", answer_seconds=PATIENCE_SECONDS)
    request.addfinalizer(process.dismiss)
    lock = only_manager(workdir)
    lock.__enter__()

    def leave(started: int) -> None:
        if started == 2:
            lock.__exit__(None, None, None)

    process.started = leave
    process.locate()
    assert record(workdir).lives


def test_one_that_is_killed_in_its_first_seconds_is_started_again(
    workdir: Path, request: pytest.FixtureRequest
) -> None:
    """Twice before it has done anything, and once when it listens and nobody has asked it yet."""
    process = Counted(workdir, "run", answer_seconds=PATIENCE_SECONDS)
    request.addfinalizer(process.dismiss)
    killed: list[int] = []

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    def started(times: int) -> None:
        assert process._child is not None
        if times < 3:
            kill(process._child.pid)

    def asked(times: int) -> None:
        there = read_record(workdir)
        if len(killed) == 2 and there is not None:
            kill(there.pid)

    process.started, process.before_asking = started, asked
    assert process.locate().address == record(workdir).local_address
    assert len(set(killed)) == 3 and process.starts == 4


def test_one_that_is_killed_each_time_ends_the_run_in_a_line(
    workdir: Path, request: pytest.FixtureRequest
) -> None:
    """Whether it had answered or not: later ends and first ones count alike."""
    few = Restarts(most_starts=3, settled_seconds=1e9, first_pause_seconds=0.0)
    process = Counted(workdir, "run", answer_seconds=PATIENCE_SECONDS, restarts=few)
    request.addfinalizer(process.dismiss)
    process.locate()
    os.kill(record(workdir).pid, signal.SIGKILL)

    def started(times: int) -> None:
        assert process._child is not None
        process._child.kill()

    process.started = started
    with pytest.raises(
        ManagerNotStarted, match=r"3 times in a row in vain; the last was ended by SIGKILL"
    ) as ended:
        process.locate()
    assert process.starts == 3 and exits.of_error(ended.value) == exits.BROKEN


def test_one_that_is_killed_as_it_leaves_is_seen_off_by_another(
    workdir: Path, request: pytest.FixtureRequest
) -> None:
    """Its servers look for a manager where it was; the record is gone once one has left."""
    process = Counted(workdir, "run", answer_seconds=PATIENCE_SECONDS)
    request.addfinalizer(process.dismiss)
    process.locate()
    os.kill(record(workdir).pid, signal.SIGKILL)
    process.close()
    assert process.starts == 2 and read_record(workdir) is None
    process.close()
    assert process.starts == 2


def test_a_port_in_use_is_a_mistake_and_no_breakdown(tmp_path: Path) -> None:
    """The trainer ends with code 2, and `--supervise` does not try again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = tiny.get_config()
        config.fleet.provider, config.manager.port = "none", taken.getsockname()[1]
        write_run_config(tmp_path / "config.json", run_config(config), "run")
        with pytest.raises(ManagerMisconfigured, match=r"is in use \(manager\.port\)") as refused:
            ManagerProcess(tmp_path, "run", answer_seconds=PATIENCE_SECONDS).locate()
    assert exits.of_error(refused.value) == exits.MISTAKE


def test_a_mistake_is_reported_at_once(workdir: Path) -> None:
    (workdir / "config.json").write_text("{")
    with pytest.raises(ManagerMisconfigured, match=r"config\.json is damaged"):
        ManagerProcess(workdir, "run", answer_seconds=PATIENCE_SECONDS).locate()


def test_a_missing_package_is_a_mistake_and_one_line(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "packages"
    shadow.mkdir()
    (shadow / "aiohttp.py").write_text("import not_installed.at_all\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(shadow), *filter(None, sys.path)]))
    process = Counted(workdir, "run", answer_seconds=PATIENCE_SECONDS)
    with pytest.raises(ManagerMisconfigured, match="no module 'not_installed'; install") as ended:
        process.locate()
    assert process.starts == 1 and "\n" not in str(ended.value)
    assert exits.of_error(ended.value) == exits.MISTAKE


@pytest.mark.parametrize("another", ["program", "time"])
def test_a_process_that_only_has_the_number_is_left_alone(workdir: Path, another: str) -> None:
    """After a restart of the host, `manager.json` names whatever runs there now."""
    comment = "  # rlboost_jax" if another == "time" else ""
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()" + comment], stdin=subprocess.PIPE
    )
    stale = ManagerRecord(
        address="127.0.0.1:9",
        local_address="127.0.0.1:9",
        join=str(workdir / "join"),
        pid=bystander.pid,
        started=start_time(bystander.pid) if another == "program" else "another time",
        run_id="run",
    )
    (workdir / "manager.json").write_bytes(msgspec.json.encode(stale))
    process = ManagerProcess(workdir, "run", answer_seconds=PATIENCE_SECONDS)
    try:
        process.dismiss()
        process.close()
        assert bystander.poll() is None
        process.locate()
        assert record(workdir).pid != bystander.pid
    finally:
        process.dismiss()
        bystander.communicate()
    assert bystander.returncode == 0, "it was signalled"


def test_that_of_another_run_is_not_taken_for_ours(process: ManagerProcess, workdir: Path) -> None:
    process.locate()
    other = ManagerProcess(workdir, "another run")
    other.dismiss()
    assert record(workdir).lives


def test_one_that_reads_its_journal_is_waited_for(workdir: Path) -> None:
    """As long as it goes on with that, whatever the patience for one that is silent."""
    make_run(workdir)
    stands_for_it = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()  # a manager of rlboost_jax"],
        stdin=subprocess.PIPE,
    )
    answers = iter([*[(503, f"{percent} %") for percent in range(9)], (200, "")])
    now = 0.0

    async def answer(request: web.Request) -> web.Response:
        nonlocal now
        now += 20.0
        status, text = next(answers)
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/status", answer)
    server = TestServer(app)
    thread = EventLoopThread()
    tls = server_tls(workdir / "authority")
    thread.run(server.start_server(ssl=tls), PATIENCE_SECONDS)
    address = f"{server.host}:{server.port}"
    there = ManagerRecord(
        address=address,
        local_address=address,
        join="",
        pid=stands_for_it.pid,
        started=start_time(stands_for_it.pid),
        run_id="run",
    )
    process = ManagerProcess(
        workdir, "run", answer_seconds=30.0, ask_seconds=PATIENCE_SECONDS, clock=lambda: now
    )
    try:
        with recorded(workdir, there):
            assert process.locate().address == address
            assert now == 200.0
            answers = iter([(503, "30 %")] * 9)
            with pytest.raises(ManagerNotStarted, match=r"not answered for 30 s.*\(30 %\)"):
                process.locate()
    finally:
        stands_for_it.kill()
        stands_for_it.communicate()
        thread.run(server.close(), PATIENCE_SECONDS)
        thread.close()
