"""`rlboost fleet`: what runs have left is found and ended, and nothing of a run that is alive."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlboost_jax.cli import fleet
from rlboost_jax.platform import process_liveness
from rlboost_jax.providers.base import ANY_POOL, Started
from rlboost_jax.trust.run_files import only_manager
from tests.patience import PATIENCE_SECONDS
from tests.providers.benches import CommandBench, killed
from tests.providers.test_contract import Ear, play
from tests.providers.test_local import SLEEPER, note
from tests.workdirs import begun


def abandoned(folder: Path, *names: str) -> tuple[CommandBench, Path]:
    """The cloud and the workdir of a run "run", whose manager has died and left servers."""
    bench = CommandBench(folder)
    cloud = bench.cloud
    begun(
        folder,
        provider="command",
        command={
            "start": f"{cloud.script('start')} {{name}} {{nonce}} {{run}}",
            "stop": f"{cloud.script('stop')} {{name}} {{grace}}",
            "list": str(cloud.script("list")),
            "poll_seconds": 0.1,
        },
    )

    async def story() -> None:
        provider = bench.open()
        ear = Ear(provider)
        for name in names:
            await provider.request(name, f"nonce-{name}", ANY_POOL)
            await ear.of(name, Started)
        await killed(provider)

    if names:
        play(story)
    return bench, folder


def named(cloud: CommandBench) -> list[str]:
    ran = subprocess.run([cloud.cloud.script("list")], capture_output=True, text=True, check=True)
    return sorted(line.split()[1] for line in ran.stdout.splitlines())


def test_what_is_left_is_listed_and_reaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, workdir = abandoned(tmp_path, "a", "stubborn")
    assert fleet.main(["list", str(workdir)]) == fleet.LEFT
    said = capsys.readouterr().out
    assert f"{workdir}  a\n" in said and f"{workdir}  stubborn\n" in said
    assert named(cloud) == ["a", "stubborn"], "a list ends nothing"
    assert fleet.main(["reap", str(workdir)]) == 0
    assert f"{workdir}  2 ended" in capsys.readouterr().out
    assert named(cloud) == []
    assert fleet.main(["list", str(workdir)]) == 0
    assert "nothing is left" in capsys.readouterr().out


def test_a_list_ends_not_even_what_a_manager_would(tmp_path: Path) -> None:
    """Here a second machine of one name. A run that is alive may have started it just now."""
    bench, workdir = abandoned(tmp_path)
    stops = tmp_path / "stops"
    bench.cloud.script("list").write_text("#!/bin/sh\necho run a one\necho run a two\n")
    bench.cloud.script("stop").write_text(f"#!/bin/sh\necho $1 >> {stops}\n")
    assert fleet.main(["list", str(workdir)]) == fleet.LEFT
    assert not stops.exists()


def test_others_are_reaped_though_one_cannot_be_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, workdir = abandoned(tmp_path)
    for name in ("a", "b", "c"):
        start = [bench.cloud.script("start"), name, f"nonce-{name}", "of-another"]
        subprocess.run(start, check=True)
    stop = bench.cloud.script("stop")
    text = stop.read_text()
    stop.write_text(text.replace("read -r", 'test "$1" != a || exit 1\nread -r', 1))
    with monkeypatch.context() as patched:
        patched.setattr(fleet, "END_SECONDS", 0.3)
        assert fleet.main(["reap", str(workdir), "--all"]) == fleet.LEFT
    assert "they do not end" in capsys.readouterr().out
    deadline = time.monotonic() + PATIENCE_SECONDS
    while named(bench) != ["a"]:  # the others are on their way
        assert time.monotonic() < deadline
    stop.write_text(text)
    assert fleet.main(["reap", str(workdir), "--all"]) == 0 and named(bench) == []


def test_a_run_that_is_alive_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, workdir = abandoned(tmp_path, "a")
    with only_manager(workdir):
        assert fleet.main(["reap", str(workdir)]) == 2
    assert "end the run first" in capsys.readouterr().err and named(cloud) == ["a"]
    assert fleet.main(["reap", str(workdir)]) == 0


def test_those_of_other_runs_only_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, workdir = abandoned(tmp_path)
    other = [cloud.cloud.script("start"), "x", "nonce-x", "of-another"]
    subprocess.run(other, check=True)
    assert fleet.main(["reap", str(workdir)]) == 0
    assert "of another run, of-another  x" in capsys.readouterr().out and named(cloud) == ["x"]
    assert fleet.main(["reap", str(workdir), "--all"]) == 0
    assert "1 ended" in capsys.readouterr().out and named(cloud) == []


def test_processes_of_this_host_are_reaped_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = subprocess.Popen([sys.executable, "-c", SLEEPER])
    try:
        while not process_liveness.runs(left.pid, process_liveness.start_time(left.pid)):
            assert left.poll() is None
        workdir = begun(tmp_path, provider="local")
        note(workdir, "local-4", left.pid, process_liveness.start_time(left.pid))
        assert fleet.main(["list", str(workdir)]) == fleet.LEFT
        assert "local-4" in capsys.readouterr().out
        assert fleet.main(["reap", str(workdir)]) == 0
        assert left.wait() == -signal.SIGTERM
    finally:
        left.kill()
        left.wait()


def test_each_pool_of_a_run_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of one cloud, which lists those of both, and one of this host."""
    bench, workdir = abandoned(tmp_path, "spot-1", "spare-2")
    cloud = bench.cloud
    options = {
        "start": f"{cloud.script('start')} {{name}} {{nonce}} {{run}}",
        "stop": f"{cloud.script('stop')} {{name}} {{grace}}",
        "list": str(cloud.script("list")),
    }
    begun(
        workdir,
        pools=[
            {"name": "spot", "provider": "command", "options": options},
            {"name": "spare", "provider": "command", "options": options},
            {"name": "here"},
        ],
    )
    assert fleet.main(["list", str(workdir)]) == fleet.LEFT
    said = capsys.readouterr().out
    assert f"{workdir} (spot)  spot-1\n" in said and f"{workdir} (spare)  spare-2\n" in said
    assert said.count("spot-1") == 1 and "(here)  nothing is left" in said
    assert fleet.main(["reap", str(workdir)]) == 0
    assert named(bench) == []


def test_a_provider_that_does_not_answer_is_not_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, workdir = abandoned(tmp_path, "a")
    blind = cloud.cloud.folder / "blind"
    blind.write_text("the cloud is away\n")
    for action in ("list", "reap"):
        assert fleet.main([action, str(workdir)]) == fleet.LEFT
        said = capsys.readouterr().out
        assert "does not answer: " in said and "the cloud is away" in said
    blind.unlink()
    assert fleet.main(["reap", str(workdir)]) == 0 and named(cloud) == []


def test_what_is_no_run_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.main(["list", str(tmp_path / "nowhere")]) == 2
    assert "error: cannot read" in capsys.readouterr().err
