"""A host that runs out of something under a run: nothing is lost, a process that ends says what
to do in a line, and the same command goes on once there is enough, to the same bits."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.disks import BrokenDisk, can_mount, fill, small_disk
from tests.system.harness import PATIENT, SHORT, Run, Standstill, prepared
from tests.system.scarcity import SCARCE, Scarce, can_count_processes, without

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of living processes"),
]
mounts = pytest.mark.skipif(not can_mount(), reason="mounts small file systems")

NO_MEMORY = (  # or the stack of a thread, or a program of the system's
    "error: no memory is left",
    "error: no process or thread can be started",
    "the trainer shows no progress for",
)
BALLAST = 2**16  # bytes of a file that takes room
SAID = {  # by a trainer that ends of it
    "descriptors": ("ulimit -n",),
    "processes": ("ulimit -u",),
}
# A trainer without memory is another matter: see below.
WITHOUT = [
    (component, what)
    for component in ("manager", "forker", "servers", "trainer")
    for what in SCARCE
    if (component, what) != ("trainer", "memory")
]


def of_trainer(run: Run) -> str:
    """Ends with code 1; returns what it says last, which is one line."""
    run.end()
    assert run.process is not None and run.process.returncode == 1, run.process.errors[-4000:]
    assert "Traceback" not in run.process.errors, run.process.errors[-4000:]
    return run.process.errors.strip().splitlines()[-1]


def goes_on(run: Run, calm: Run) -> None:
    run.start().finish()
    assert run.digests() == calm.digests()
    run.assert_accounts_hold()


def pids(run: Run, program: str) -> list[int]:
    return [pid for pid, command in run.processes().items() if program in command]


def no_traceback(run: Run) -> None:
    for path in (run.workdir / "logs").glob("*.log"):
        text = path.read_text(errors="replace")
        assert "Traceback" not in text, f"{path.name}:\n{text[-2000:]}"


@contextlib.contextmanager
def all_without(what: Scarce, victims: list[int]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for pid in victims:
            stack.enter_context(without(what, pid))
        yield


def forker(run: Run, still: Standstill) -> list[int]:
    return [pid for pid in pids(run, "rollout.zygote") if pid not in still.at_work.values()]


@pytest.mark.parametrize(("component", "what"), WITHOUT)
def test_a_process_that_has_no_more_costs_time_only(
    short_and_calm: Run, tmp_path: Path, what: Scarce, component: str
) -> None:
    """It gets no more than it uses, from the middle of a step to its end.

    One of the two that servers need for their start is killed.
    """
    if what == "processes" and not can_count_processes():
        pytest.skip("makes a group that counts processes")
    with (
        prepared(tmp_path / "run", *SHORT, *PATIENT) as run,
        contextlib.ExitStack() as stack,
    ):
        run.hold(version=2).start()
        with run.at_a_standstill(version=2) as still:
            victims = {
                "trainer": lambda: [run.process.pid],
                "manager": lambda: pids(run, "rlboost_jax.manager --workdir"),
                "forker": lambda: forker(run, still),
                "servers": lambda: list(still.at_work.values()),
            }[component]()
            assert victims
            stack.enter_context(all_without(what, victims))
            if component in ("manager", "forker"):
                os.kill(still.one[1], signal.SIGKILL)  # another is wanted
        if component == "trainer":
            line = of_trainer(run)
            assert line.startswith("error: "), line
            assert any(words in line for words in SAID[what]), line
            stack.close()
            run.start()
        run.finish()
        assert run.digests() == short_and_calm.digests()
        run.assert_accounts_hold()
        no_traceback(run)


def test_a_supervised_trainer_without_memory_costs_time_only(
    short_and_calm: Run, tmp_path: Path
) -> None:
    """It ends by itself, with a line, or stands still: Python waits for good for a thread that
    has no memory to say that it has begun (6 of 8 times here). Then the supervisor ends it."""
    options = ("--supervise", "--stall_seconds=30")
    with prepared(tmp_path / "run", *SHORT, *PATIENT, options=options) as run:
        run.hold(version=2).start()
        with contextlib.ExitStack() as stack, run.at_a_standstill(version=2):
            trainer = int((run.workdir / "lock").read_text())
            stack.enter_context(without("memory", trainer))
            run.let_go()
            run.wait_until(lambda: trainer not in run.processes(), "end of it")
        run.finish()
        assert run.process is not None
        line, again = [
            each for each in run.process.errors.splitlines() if not each.startswith("warning: ")
        ]
        assert any(words in line for words in NO_MEMORY), line
        assert again.startswith("the trainer ") and "; starting it again in " in again
        assert run.digests() == short_and_calm.digests()
        run.assert_accounts_hold()
        no_traceback(run)


@mounts
@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_a_full_disk_costs_time_only(short_and_calm: Run, tmp_path: Path, what: str) -> None:
    limits = {"size": "24m"} if what == "bytes" else {"size": "24m", "nr_inodes": "2000"}
    with (
        small_disk(tmp_path / "disk", **limits) as disk,
        prepared(disk / "run", *SHORT, *PATIENT, beside=tmp_path / "run") as run,
    ):
        run.hold(version=2).start()
        with run.at_a_standstill(version=2):
            ballast = fill(disk, BALLAST if what == "bytes" else 0)
        line = of_trainer(run)
        assert line.startswith("error: ") and "no space (or no inode) is left" in line, line
        no_traceback(run)
        shutil.rmtree(ballast)
        goes_on(run, short_and_calm)


@mounts
def test_a_file_system_that_becomes_read_only_costs_time_only(
    short_and_calm: Run, tmp_path: Path
) -> None:
    """As ext4 does on an error of its disk, with all files open. The host is then repaired as one
    does: everything is ended, and the file system checked."""
    with (
        BrokenDisk(tmp_path, megabytes=96) as disk,
        prepared(disk.place / "run", *SHORT, *PATIENT, beside=tmp_path / "run") as run,
    ):
        run.hold(version=2).start()
        with run.at_a_standstill(version=2):
            disk.fail()
        line = of_trainer(run)
        assert line.startswith("error: ") and "can only be read" in line, line
        no_traceback(run)
        run.close()
        disk.repair()
        goes_on(run, short_and_calm)
