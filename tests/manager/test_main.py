"""The manager as a process: its files, its exit codes, what it imports."""

import contextlib
import json
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rlboost_jax import messages as m
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.platform.at_rest import read_sealed, write_sealed
from rlboost_jax.platform.process_liveness import start_time
from rlboost_jax.platform.proxies import opened
from rlboost_jax.settings.config_loading import read_run_config, run_config_from_dict
from rlboost_jax.settings.for_servers import for_servers
from rlboost_jax.trust.credentials import FILES_CONNECTIONS, Endpoint, read_credentials
from rlboost_jax.trust.run_files import ALREADY_MANAGED
from tests.endpoints import free_port
from tests.manager.fakes import hello
from tests.patience import PATIENCE_SECONDS
from tests.workdirs import begun

COMMAND = [sys.executable, "-m", "rlboost_jax.manager"]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return begun(tmp_path, orphan_seconds=60.0)


@contextmanager
def manager(workdir: Path) -> Iterator[subprocess.Popen[str]]:
    """A manager that listens."""
    process = subprocess.Popen(
        [*COMMAND, f"--workdir={workdir}"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert any("listening on" in line for line in process.stderr), "it ended"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def record_in(workdir: Path) -> dict[str, Any]:
    return json.loads((workdir / "manager.json").read_text())


def bearer(workdir: Path, folder: str) -> dict[str, str]:
    return read_endpoint(workdir, folder).headers


def read_endpoint(workdir: Path, folder: str = "join") -> Endpoint:
    """The manager at work there, as that folder opens it."""
    credentials = read_credentials(workdir / folder, environment={})
    return Endpoint(address=record_in(workdir)["address"], credentials=credentials)


def change(workdir: Path, **values: Any) -> None:
    """Set `section__field`s of the configuration."""
    config = read_sealed(workdir / "config.json", "")
    assert config is not None
    for name, value in values.items():
        section, _, field = name.partition("__")
        config[section][field] = value
    write_sealed(workdir / "config.json", config)


def at_fixed_ports(workdir: Path) -> None:
    """The next manager, at ports that the system gives to nobody once they are free again."""
    change(workdir, manager__port=free_port(), manager__weights_port=free_port())


def at_any_ports(workdir: Path) -> None:
    """The next manager, which prefers those of the last."""
    change(workdir, manager__port=0, manager__weights_port=0)


@contextlib.contextmanager
def first_manager(workdir: Path) -> Iterator[subprocess.Popen[str]]:
    """Whose ports are free when the next one asks for them."""
    at_fixed_ports(workdir)
    with manager(workdir) as process:
        yield process
    at_any_ports(workdir)


def test_a_run_from_hello_to_the_end(workdir: Path, run: Callable[..., Any]) -> None:
    async def story() -> None:
        record = record_in(workdir)
        mine, ours = read_endpoint(workdir), read_endpoint(workdir, "trainer")
        assert mine.address == record["local_address"]
        assert Path(record["join"]) == workdir / "join"
        async with aiohttp.ClientSession() as session:
            asked = session.get(mine.url("/config"), headers=mine.headers, ssl=mine.tls)
            async with asked as answer:
                assert answer.headers[FILES_CONNECTIONS] == "32", "few instances have all they want"
                served = run_config_from_dict(await answer.json())
                assert served == for_servers(read_run_config(workdir))
            server = await session.ws_connect(
                mine.url("/instance"), headers=mine.headers, ssl=mine.tls
            )
            config = json.loads((workdir / "config.json").read_text())
            slot = config["engine"]["max_prompt_tokens"] + config["sampling"]["max_response_tokens"]
            await server.send_bytes(m.encode(hello(instance="mine", slot_tokens=slot)))
            trainer = await session.ws_connect(
                ours.url("/trainer"), headers=ours.headers, ssl=ours.tls
            )
            greeting = m.TrainerHello(run_id="run", window=None)
            await trainer.send_bytes(m.encode(greeting))
            await trainer.send_bytes(m.encode(m.EndRun(reason="done", over=True)))
            seen = [m.decode_to_server(f.data) async for f in server]
            assert [type(s) for s in seen] == [m.Welcome, m.Leave]

    with manager(workdir) as process:
        for name in ("join", "trainer"):
            assert stat.S_IMODE((workdir / name).stat().st_mode) == 0o700
            assert stat.S_IMODE((workdir / name / "token").stat().st_mode) == 0o600
        record = record_in(workdir)
        assert record["pid"] == process.pid and record["run_id"] == "run"
        assert record["address"] == record["local_address"]
        run(story())
        assert process.wait() == 0
    assert not (workdir / "manager.json").exists()
    began, joined, *_ = events = read_events(workdir)
    assert (began["kind"], began["detail"]["pid"]) == ("manager", record["pid"])
    assert "ended" in [event["kind"] for event in events]
    assert (joined["kind"], joined["instance"], joined["step"]) == ("joined", "mine", -1)


def test_a_signal_ends_it_tidily(workdir: Path) -> None:
    with manager(workdir) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert not (workdir / "manager.json").exists()


def test_one_manager_a_workdir(workdir: Path) -> None:
    with manager(workdir):
        before = (workdir / "manager.json").read_text()
        second = subprocess.run(
            [*COMMAND, f"--workdir={workdir}"], capture_output=True, text=True, check=False
        )
        assert second.returncode == ALREADY_MANAGED and "a manager works in" in second.stderr
        assert (workdir / "manager.json").read_text() == before


@pytest.mark.parametrize("content", [None, "{", '{"run_id": "run"}'])
def test_a_mistaken_workdir_is_said_in_a_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    ended = subprocess.run(
        [*COMMAND, f"--workdir={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert "config" in ended.stderr and not (tmp_path / "manager.json").exists()


def test_a_taken_port_is_said_in_a_line(workdir: Path, tmp_path_factory: Any) -> None:
    with manager(workdir):
        port = record_in(workdir)["address"].split(":")[1]
        other = tmp_path_factory.mktemp("other")
        (other / "config.json").write_text((workdir / "config.json").read_text())
        change(other, manager__port=int(port))
        ended = subprocess.run(
            [*COMMAND, f"--workdir={other}"], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 2 and port in ended.stderr
        assert "Traceback" not in ended.stderr


def test_equal_tokens_are_a_mistake(workdir: Path) -> None:
    for name in ("join", "trainer"):
        (workdir / name).mkdir()
        (workdir / name / "token").write_text("the same")
    ended = subprocess.run(
        [*COMMAND, f"--workdir={workdir}"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert "trainer/token" in ended.stderr and "the same" not in ended.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_hosts_are_given_a_name_of_this_one(workdir: Path, host: str) -> None:
    change(workdir, manager__host=host)
    with manager(workdir):
        record = record_in(workdir)
        for address in (record["address"], record["local_address"]):
            assert "0.0.0.0" not in address and "[::]" not in address
            there = replace(read_endpoint(workdir), address=address)
            request = urllib.request.Request(there.url("/config"), headers=there.headers)
            tls = there.credentials.tls
            with opened(request, timeout=PATIENCE_SECONDS, tls=tls) as answer:
                assert answer.status == 200


def test_a_token_comes_with_its_own_certificate(workdir: Path) -> None:
    """The trainer's token alone is of no use on a host that has a server's certificate."""

    def status(route: str, certificate: str, token: str) -> int:
        there = read_endpoint(workdir, certificate)
        headers = bearer(workdir, token)
        request = urllib.request.Request(there.url(route), headers=headers)
        try:
            tls = there.credentials.tls
            return opened(request, timeout=PATIENCE_SECONDS, tls=tls).status
        except urllib.error.HTTPError as error:
            return error.code

    with manager(workdir):
        assert status("/config", "join", "join") == 200
        assert status("/config", "trainer", "trainer") == 200
        assert status("/config", "join", "trainer") == 403
        assert status("/config", "trainer", "join") == 403
        assert status("/trainer", "join", "join") == 403
        for path in workdir.rglob("*.key"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_of_before_there_was_always_tls_goes_on(workdir: Path) -> None:
    """Its `config.json` says that there was none, and its clients' folders have a token only."""
    change(workdir, fleet__tls=False)
    for name in ("join", "trainer"):
        (workdir / name).mkdir()
        (workdir / name / "token").write_text(f"{name}-token")
    with manager(workdir):
        there = read_endpoint(workdir)
        request = urllib.request.Request(there.url("/status"), headers=there.headers)
        opened(request, timeout=PATIENCE_SECONDS, tls=there.credentials.tls).close()


def test_one_that_dies_of_an_exception_is_followed_on_its_port(workdir: Path) -> None:
    """The next manager listens where the servers of the dead one look for theirs."""
    program = (
        "import sys; from rlboost_jax.manager import __main__ as m;"
        "from rlboost_jax.manager.reducer.manager import Manager;"
        "Manager.handle = lambda *_: 1 / 0; sys.exit(m.main(sys.argv[1:]))"
    )
    at_fixed_ports(workdir)
    dying = subprocess.Popen(
        [sys.executable, "-c", program, f"--workdir={workdir}"], stderr=subprocess.PIPE, text=True
    )
    assert dying.stderr is not None
    assert any("listening on" in line for line in dying.stderr), "it ended too early"
    before = record_in(workdir)
    dying.send_signal(signal.SIGTERM)  # any event will do
    assert "ZeroDivisionError" in dying.communicate()[1]
    assert dying.returncode not in (0, None)
    at_any_ports(workdir)
    with manager(workdir) as process:
        after = record_in(workdir)
        assert after["pid"] == process.pid != before["pid"]
        assert after["address"] == before["address"]


@pytest.mark.parametrize("taken", [False, True])
def test_servers_that_cannot_find_it_are_ended(workdir: Path, taken: bool) -> None:
    """Servers of a killed manager stay, unless another program has its port now."""
    change(workdir, fleet__provider="local", fleet__max_instances=0)
    server = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()  # a server of rlboost_jax"],
        stdin=subprocess.PIPE,
    )
    with first_manager(workdir) as process:
        process.kill()
    (workdir / "servers").mkdir()
    note = {"nonce": "n", "pid": server.pid, "started": start_time(server.pid)}
    (workdir / "servers" / "local-3").write_text(json.dumps(note))
    with contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        if taken:
            other = stack.enter_context(socket.socket())
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", int(record_in(workdir)["address"].split(":")[1])))
            other.listen()
        with manager(workdir):
            if not taken:  # once the manager answers, it has decided; left alone it ends well
                there = read_endpoint(workdir)
                request = urllib.request.Request(there.url("/status"), headers=there.headers)
                opened(request, timeout=PATIENCE_SECONDS, tls=there.credentials.tls).close()
                assert server.stdin is not None
                server.stdin.close()
            assert server.wait() == (-signal.SIGKILL if taken else 0)


def test_it_imports_no_jax() -> None:
    program = (
        "import sys, rlboost_jax.manager.__main__ as _; "
        "print([n for n in ('jax', 'flax', 'orbax', 'tensorstore') if n in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stdout.strip() == b"[]"
