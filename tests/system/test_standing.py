"""A terminal that stands still, a disk that does not answer: the run ends with the same bits."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.harness import SHORT, Run, prepared

pytestmark = pytest.mark.system

FULL_PIPE = """
import os, sys
reads, writes = os.pipe()
os.set_inheritable(reads, True)  # open, and read by nobody
os.set_blocking(writes, False)
try:
    while True:
        os.write(writes, bytes(4096))
except BlockingIOError:
    os.set_blocking(writes, True)
os.dup2(writes, 1)
os.dup2(writes, 2)
os.execv(sys.executable, sys.argv[1:])
"""


@pytest.fixture(scope="module")
def hung_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes a folder's disk hang, for a process that loads it first."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, on Linux")
    library = tmp_path_factory.mktemp("hung") / "hung_disk.so"
    source = Path(__file__).with_name("hung_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("seconds", [6.0, pytest.param(65.0, marks=pytest.mark.soak)])
def test_words_that_nobody_reads_and_a_disk_that_does_not_answer_for_a_while_change_no_bit(
    short_and_calm: Run,
    hung_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:
    """Trainer, manager and servers wait where they must; nobody's lease ends for it. Nothing of
    that is said to anybody: the pipe is full from the beginning."""
    hangs = tmp_path / "hangs"
    monkeypatch.setenv("LD_PRELOAD", str(hung_disk))
    monkeypatch.setenv("HUNG_DISK_FLAG", str(hangs))
    monkeypatch.setenv("HUNG_DISK_PATH", f"{tmp_path / 'run'}{os.sep}")
    with prepared(tmp_path / "run", *SHORT, "manager.lease_seconds=4") as run:
        run.command = [sys.executable, "-c", FULL_PIPE, *run.command]
        run.hold(version=2).start()
        monkeypatch.delenv("LD_PRELOAD")
        with run.at_a_standstill(version=2):
            run.wait_until(lambda: len(run.servers()) == 2, "a fleet")
            began = time.time()
            hangs.touch()
        time.sleep(seconds)  # the fault itself
        rows, ended = len(run.metrics()), time.time()
        hangs.unlink()
        run.finish()
        assert rows < 6, "it was over before the disk hung"
        assert not run.process.output and not run.process.errors, "it has a pipe of its own"
        assert run.digests() == short_and_calm.digests()
        assert sorted(path.name for path in (run.workdir / "checkpoints").iterdir())[-1] == "6"
        run.assert_nothing_is_left()
        run.assert_accounts_hold()
        over = run.events("trained")[-1]["time"]  # then the trainer's engine goes, as it should
        until = min(ended + 1.0, over)
        lost = [e for e in run.events("lost") if began <= e["time"] <= until]
        assert not [e for e in lost if "progress" in e["detail"]["reason"]], lost
        assert not lost, "on a machine that did not stand still itself"


@pytest.mark.soak
def test_a_disk_that_hangs_for_longer_ends_the_run_with_a_line_and_the_same_command_goes_on(
    short_and_calm: Run, hung_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "hangs"
    monkeypatch.setenv("LD_PRELOAD", str(hung_disk))
    monkeypatch.setenv("HUNG_DISK_FLAG", str(hangs))
    monkeypatch.setenv("HUNG_DISK_PATH", f"{tmp_path / 'run'}{os.sep}")
    with prepared(tmp_path / "run", *SHORT, "checkpoint.disk_seconds=5") as run:
        run.hold(version=2).start()
        with run.at_a_standstill(version=2):
            hangs.touch()
        said = run.end()
        assert run.process.returncode == 1, said
        assert "got nothing done for" in said and str(run.workdir) in said, said
        assert "Traceback" not in said, said
        hangs.unlink()
        run.start().finish()
        assert run.digests() == short_and_calm.digests()
        run.assert_nothing_is_left()
        run.assert_accounts_hold()
