"""The manager as a process: its files, its exit codes, what it imports."""

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from configs import tiny
from rlboost_jax import messages as m
from rlboost_jax.config.load import run_config, write_run_config
from rlboost_jax.observe.events import read_events
from tests.manager.fakes import hello

COMMAND = [sys.executable, "-m", "rlboost_jax.manager"]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    config = tiny.get_config()
    config.fleet.provider = "none"
    config.fleet.orphan_seconds = 60.0
    write_run_config(tmp_path / "config.json", run_config(config), "run")
    return tmp_path


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


def dial(workdir: Path, route: str) -> tuple[str, dict[str, str]]:
    record = json.loads((workdir / "manager.json").read_text())
    token = Path(record["token_file"]).read_text()
    return f"http://{record['address']}{route}", {"Authorization": f"Bearer {token}"}


def test_a_run_from_hello_to_the_end(workdir: Path, run: Callable[..., Any]) -> None:
    async def story() -> None:
        url, headers = dial(workdir, "")
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(url + "/config") as answer:
                assert await answer.json() == json.loads((workdir / "config.json").read_text())
            server = await session.ws_connect(url + "/instance")
            config = json.loads((workdir / "config.json").read_text())
            slot = config["engine"]["max_prompt_tokens"] + config["sampling"]["max_response_tokens"]
            await server.send_bytes(m.encode(hello(instance="mine", slot_tokens=slot)))
            trainer = await session.ws_connect(url + "/trainer")
            greeting = m.TrainerHello(run_id="run", step=0, window=None, pid=1)
            await trainer.send_bytes(m.encode(greeting))
            await trainer.send_bytes(m.encode(m.EndRun(reason="done")))
            seen = [m.decode_to_server(f.data) async for f in server]
            assert [type(s) for s in seen] == [m.Welcome, m.Leave]

    with manager(workdir) as process:
        assert stat.S_IMODE((workdir / "token").stat().st_mode) == 0o600
        record = json.loads((workdir / "manager.json").read_text())
        assert record["pid"] == process.pid and record["run_id"] == "run"
        run(story())
        assert process.wait() == 0
    assert not (workdir / "manager.json").exists()
    joined = read_events(workdir)[0]
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
        assert second.returncode == 2 and "a manager works in" in second.stderr
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
        port = json.loads((workdir / "manager.json").read_text())["address"].split(":")[1]
        other = tmp_path_factory.mktemp("other")
        values = json.loads((workdir / "config.json").read_text())
        values["manager"]["port"] = int(port)
        (other / "config.json").write_text(json.dumps(values))
        ended = subprocess.run(
            [*COMMAND, f"--workdir={other}"], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 2 and port in ended.stderr
        assert "Traceback" not in ended.stderr


def test_it_imports_no_jax() -> None:
    program = (
        "import sys, rlboost_jax.manager.__main__ as _; "
        "print([n for n in ('jax', 'flax', 'orbax', 'tensorstore') if n in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stdout.strip() == b"[]"
