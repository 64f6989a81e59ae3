"""Slurm's words: what sbatch is given, and what lines of squeue mean."""

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rlboost_jax.providers.base import ANY_POOL
from rlboost_jax.providers.launcher import Job, JobState, LaunchFailed
from rlboost_jax.providers.slurm import SlurmLauncher
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig, NoticeSignal
from rlboost_jax.settings.launchers_config import SlurmConfig, slurm_mistakes
from tests.patience import PATIENCE_SECONDS
from tests.providers.benches import SECRET, made_join, rendezvous
from tests.providers.test_command import script

SLURM = SlurmConfig(partitions="spot,spare", minutes=90, options="--gpus=1 --mem='64 G'")


def launcher(
    folder: Path, slurm: SlurmConfig = SLURM, notice: float = 0.0, by: NoticeSignal = "SIGUSR1"
) -> SlurmLauncher:
    """Make a launcher whose programs write down their calls, in `<name>.argv` and so on."""
    made_join(folder)
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("sbatch", "squeue", "scancel"):
        text = f'printf "%s\\n" "$@" >>"{folder}/{name}.argv"; env >"{folder}/{name}.env"'
        more = f'; cat >"{folder}/script"' if name == "sbatch" else ""
        more = f'; cat "{folder}/list"' if name == "squeue" else more
        script(programs / name, text + more)
    fleet = FleetConfig(
        provider="slurm",
        chaos=ChaosConfig(),
        slurm=slurm,
        notice_seconds=notice,
        notice_signal=by,
        price_per_hour=1.5,
    )
    return SlurmLauncher(fleet, rendezvous(folder), programs=programs)


def started(folder: Path, pool: str = ANY_POOL, **options: object) -> tuple[list[str], str]:
    """Arguments of sbatch, and the script that it was given."""
    asyncio.run(launcher(folder, **options).start("slurm-1", "n-1", pool))  # type: ignore[arg-type]
    return (folder / "sbatch.argv").read_text().splitlines(), (folder / "script").read_text()


def test_a_job_is_tagged_limited_and_never_requeued(tmp_path: Path) -> None:
    argv, _ = started(tmp_path)
    assert "--job-name=rlboost/run/slurm-1/n-1" in argv and "--time=90" in argv
    assert "--no-requeue" in argv and argv[-2:] == ["--gpus=1", "--mem=64 G"]
    assert f"--output={tmp_path}/logs/slurm-1.log" in argv
    assert not [word for word in argv if word.startswith("--signal")]


def test_a_workdir_of_any_name_has_its_logs(tmp_path: Path) -> None:
    """In names of files sbatch puts something else in place of %o, %j and their like."""
    folder = tmp_path / "50%off %j"
    folder.mkdir()
    argv, _ = started(folder)
    assert f"--output={tmp_path}/50%%off %%j/logs/slurm-1.log" in argv


@pytest.mark.parametrize(("pool", "partition"), [(ANY_POOL, "spot,spare"), ("spare", "spare")])
def test_partitions_are_pools(tmp_path: Path, pool: str, partition: str) -> None:
    assert f"--partition={partition}" in started(tmp_path, pool)[0]


def test_without_partitions_it_is_the_clusters_default(tmp_path: Path) -> None:
    argv, _ = started(tmp_path, slurm=replace(SLURM, partitions=""))
    assert not [word for word in argv if word.startswith("--partition")]


def test_notice_is_asked_for_where_a_server_listens_for_it(tmp_path: Path) -> None:
    argv, _ = started(tmp_path, notice=45.0)
    assert "--signal=B:USR1@45" in argv


def test_the_script_becomes_the_server(tmp_path: Path) -> None:
    _, text = started(tmp_path, slurm=replace(SLURM, setup="module load cuda"))
    assert text.startswith("#!/bin/sh\nmodule load cuda\nexec ")
    line = text.splitlines()[-1]
    assert f"{sys.executable} -m rlboost_jax.rollout --manager=127.0.0.1:9" in line
    assert "--name=slurm-1 --price=1.5" in line and f"--join={tmp_path}/join" in line
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("join_by", ["file", "environment"])
def test_credentials_are_on_no_command_line_and_in_no_script(tmp_path: Path, join_by: str) -> None:
    argv, text = started(tmp_path, slurm=replace(SLURM, join_by=join_by))  # type: ignore[arg-type]
    environment = (tmp_path / "sbatch.env").read_text()
    assert SECRET not in text + " ".join(argv)
    assert "--export=ALL" in argv
    assert ("RLBOOST_JOIN=" in environment) == (join_by == "environment")
    assert ("--join=" in text) == (join_by == "file")
    assert "RLBOOST_NONCE=n-1" in environment.splitlines()


def test_a_job_gets_what_it_is_to_have_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch is given no more itself: a key of the trainer's, say, or a job that it runs in."""
    for name in ("WANDB_API_KEY", "SLURM_JOB_ID", "SBATCH_EXPORT", "SLURM_CONF", "MINE"):
        monkeypatch.setenv(name, f"the {name}")
    started(tmp_path, slurm=replace(SLURM, export="PATH, MINE,NOT_THERE"))
    lines = (tmp_path / "sbatch.env").read_text().splitlines()
    found = {line.partition("=")[0] for line in lines} - {"PWD", "SHLVL", "_", "OLDPWD"}
    assert found == {"PATH", "MINE", "SLURM_CONF", "RLBOOST_NONCE"}


@pytest.mark.parametrize(
    ("line", "state", "code", "reason"),
    [
        ("7|PENDING|0|Resources|rlboost/run/a/n|", "waiting", None, "Resources"),
        ("7|RUNNING|0|None|rlboost/run/a/n|", "running", None, "None"),
        ("7|COMPLETING|0|None|rlboost/run/a/n|", "running", None, "None"),
        ("7|COMPLETED|0|None|rlboost/run/a/n|", "over", 0, "completed (None)"),
        ("7|FAILED|1792|NonZeroExitCode|rlboost/run/a/n|", "over", 7, "failed (NonZeroExitCode)"),
        ("7|CANCELLED|9|None|rlboost/run/a/n|", "over", None, "cancelled (None)"),
        ("7|TIMEOUT|15|TimeLimit|rlboost/run/a/n|", "over", None, "timeout (TimeLimit)"),
        ("7|PREEMPTED|15|None|rlboost/run/a/n|", "over", None, "preempted (None)"),
        ("7|NODE_FAIL|1|NodeDown|rlboost/run/a/n|", "over", None, "node_fail (NodeDown)"),
        ("7|CANCELLED by 1000|9|x|rlboost/run/a/n|", "over", None, "cancelled by 1000 (x)"),
        ("7|CANCELLED+|9|x|rlboost/run/a/n|", "over", None, "cancelled+ (x)"),
        ("7|OUT_OF_MEMORY|9|x|rlboost/run/a/n|", "over", None, "out_of_memory (x)"),
        # Of a release that is not known here: what is forgotten would go on and cost money.
        ("7|POWER_UP_NODE|0|x|rlboost/run/a/n|", "running", None, "x"),
        ("7|HIBERNATING|0|x|rlboost/run/a/n|", "running", None, "x"),
        ("7||0|x|rlboost/run/a/n|", "running", None, "x"),
    ],
)
def test_a_line_of_squeue(
    tmp_path: Path, line: str, state: JobState, code: int | None, reason: str
) -> None:
    """Codes are what wait() gives: 1792 = 7 · 256, below 256 a signal. R: 22.05 on Debian."""
    (tmp_path / "list").write_text(f"{line}\n8|RUNNING|0|None|train.sh|\n9|PENDING|0|x|rlboost|\n")
    (found,) = asyncio.run(launcher(tmp_path).list())
    assert found == Job(
        handle="7", run="run", name="a", nonce="n", state=state, code=code, reason=reason
    )
    argv = (tmp_path / "squeue.argv").read_text().splitlines()
    assert "--states=all" in argv and [word for word in argv if word.startswith("--user=")]


def test_the_last_words_of_a_server_are_the_reason_of_its_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text("x" * 9000 + "\nno answer from head:1\n\n")
    (tmp_path / "list").write_text("7|FAILED|512|NonZeroExitCode|rlboost/run/a/n|\n")
    (found,) = asyncio.run(launcher(tmp_path).list())
    assert found.reason == "failed (NonZeroExitCode); no answer from head:1" and found.code == 2
    assert found.log[-1] == "no answer from head:1"


def test_logs_on_a_slow_disk_keep_no_manager_waiting(tmp_path: Path) -> None:
    """The loop is the manager's: a reader of the log waits for what only the loop can do. It is a
    pipe, which opens once both of its ends are opened."""
    (tmp_path / "list").write_text("7|FAILED|512|NonZeroExitCode|rlboost/run/a/n|\n")
    (tmp_path / "logs").mkdir()
    log, opened_by = tmp_path / "logs" / "a.log", []
    os.mkfifo(log)

    def opened(who: str) -> bool:
        try:
            os.close(os.open(log, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody waits for it
            return False
        opened_by.append(who)
        return True

    async def open_the_other_end() -> None:
        while not opened("the loop"):
            await asyncio.sleep(0.01)

    async def story() -> None:
        other = asyncio.create_task(open_the_other_end())
        (found,) = await launcher(tmp_path).list()
        other.cancel()
        assert found.code == 2

    rescue = threading.Timer(PATIENCE_SECONDS, opened, ("somebody else, as the loop stood still",))
    rescue.start()
    asyncio.run(story())
    rescue.cancel()
    assert opened_by == ["the loop"]


def test_an_end_within_a_grace_is_a_signal_and_one_at_once_two(tmp_path: Path) -> None:
    made, job = launcher(tmp_path), Job(handle="7", run="run", name="a", nonce="n", state="running")
    asyncio.run(made.stop(job, 30.0))
    called = tmp_path / "scancel.argv"
    assert called.read_text().split() == ["--signal=TERM", "--batch", "7"]
    called.unlink()
    asyncio.run(made.stop(job, 0.0))
    assert called.read_text().split() == ["--quiet", "--signal=KILL", "--full", "7", "--quiet", "7"]
    called.unlink()
    asyncio.run(made.stop(replace(job, state="waiting"), 30.0))
    assert called.read_text().split() == ["--quiet", "7"]


def test_no_credentials_are_a_refusal(tmp_path: Path) -> None:
    made = launcher(tmp_path, replace(SLURM, join_by="environment"))
    (tmp_path / "join" / "token").unlink()
    with pytest.raises(LaunchFailed, match="token: No such file") as error:
        asyncio.run(made.start("a", "n", ANY_POOL))
    assert error.value.sure and not (tmp_path / "sbatch.argv").exists()


def test_options_that_make_no_sense_are_a_mistake() -> None:
    (line,) = slurm_mistakes(replace(SLURM, options="--mem='64"))
    assert line.startswith("fleet.slurm.options is")
    assert not list(slurm_mistakes(SLURM))
