import itertools
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from rlboost_jax.learner.checkpoints import backlog, folders, orbax_files
from rlboost_jax.learner.checkpoints.write_waits import WritesStalled, wait_for_writes
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.platform import at_rest, disk_thread, durable
from rlboost_jax.platform.disk_thread import DiskStalled
from tests.patience import PATIENCE_SECONDS

QUICK = {"size_bytes": 0, "look_seconds": 0.001, "looks": 3}
PATIENT = QUICK | {"looks": 1_000_000}  # of what returns, after as many looks as it takes


@pytest.fixture
def never():
    """What does not return before the test is over."""
    over = threading.Event()
    yield over.wait
    over.set()


class Growing(type(Path())):  # type: ignore[misc]
    """A folder in which a file grows whenever somebody looks, as long as it is to."""

    def __fspath__(self) -> str:
        place = str(self)
        if self.grows():
            with open(f"{place}/file", "ab") as file:
                file.write(b".")
        return place


def growing(folder: Path, grows: Callable[[], bool]) -> Growing:
    made = Growing(folder)
    made.grows = grows
    return made


def test_what_writes_is_called_once_and_what_it_raises_is_raised(tmp_path):
    assert wait_for_writes(lambda: "done", tmp_path, **PATIENT) == "done"
    with pytest.raises(ZeroDivisionError):
        wait_for_writes(lambda: 1 / 0, tmp_path, **PATIENT)


def test_what_is_never_done_has_an_end(tmp_path, never):
    (tmp_path / "file").write_bytes(b"some")
    with pytest.raises(WritesStalled) as caught:
        wait_for_writes(never, tmp_path, **QUICK)
    assert str(caught.value) == (
        f"nothing was written into {tmp_path} in 0.006 s, though the disk answers; the same "
        "command goes on from the checkpoint before"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "and leaves nothing behind"


def test_as_long_as_anything_is_written_it_is_waited_for(tmp_path):
    looks, still = itertools.count(1), threading.Event()

    def grows():
        if next(looks) > 50:
            still.set()
        return True  # until that thread has seen it

    wait_for_writes(still.wait, growing(tmp_path, grows), **QUICK)
    assert next(looks) > 50


def test_much_may_take_longer(tmp_path, never):
    """All of it may be seen at its end only: 20 KB at 10 MB/s are two looks more, twice."""
    with pytest.raises(WritesStalled, match=r"in 0\.01 s"):
        wait_for_writes(never, tmp_path, **QUICK | {"size_bytes": 20_000})


def test_the_disk_is_asked_before_anybody_is_suspected(tmp_path, never):
    """One that hangs is waited for; what it says is the reason."""
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError):
        wait_for_writes(never, tmp_path, **QUICK)


@pytest.mark.parametrize("where", ["begun", "written", "finished"])
def test_a_checkpoint_that_is_never_written_ends_the_run(tmp_path, never, plant, where):
    """As Orbax does where TensorStore found no memory for a thread: what it waits for is never
    done, whichever of its calls waits. (The first is made where arrays are copied.)"""
    handler, reached = ocp.PyTreeCheckpointHandler, threading.Event()

    def stuck(*given: object) -> None:
        reached.set()
        never()

    class Stuck:
        result = staticmethod(stuck)

    async def async_save(*given: object, **named: object) -> list[Stuck]:
        if where == "begun":
            stuck()
        return [Stuck()]

    if where == "finished":
        plant(handler, "finalize", stuck)
    else:
        plant(handler, "async_save", async_save)
    (tmp_path / "looked at").mkdir()  # grows until then, however slowly anything is written
    folder = growing(tmp_path / "looked at", lambda: not reached.is_set())
    plant(
        orbax_files,
        "wait_for_writes",
        lambda write, *_, **__: wait_for_writes(write, folder, **QUICK),
    )
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    checkpoints.save(1, {"x": np.ones(3)}, {})
    with pytest.raises(WritesStalled):
        checkpoints.close()
    assert checkpoints.complete() == []


DISK_SECONDS = 9_999.0  # which the process's own looks do not come to
HANGS = {  # where a save can stand: what is called there, and what the line says of it
    "writing its arrays": (orbax_files, "begin"),
    "joining what was written": (orbax_files, "finish"),
    "taking digests of its files": (at_rest, "describe"),
    "forcing its files to the disk": (durable, "sync_tree"),
    "waiting for the rows before it": None,
    "putting it in its place": (durable, "replace"),
    "reading it back": (at_rest, "faults"),
    "forcing the events before it to the disk": None,
    "deleting older ones": (folders, "remove"),
}


@pytest.mark.parametrize("part", HANGS)
def test_wherever_a_save_hangs_whoever_waits_for_it_hears_of_it(tmp_path, never, plant, part):
    """The next save, the final wait and the end of the run: none of them waits for good."""
    reached = threading.Event()

    def stuck(*given: object, **named: object) -> None:
        reached.set()
        never()

    def free(*given: object) -> None:
        pass

    checkpoints = Checkpoints(
        tmp_path,
        keep=1,
        before=stuck if part == "waiting for the rows before it" else free,
        on_durable=stuck if part == "forcing the events before it to the disk" else free,
        disk_seconds=DISK_SECONDS,
    )
    if part == "deleting older ones":
        checkpoints.save(0, {"x": np.ones(3)}, {})
        checkpoints.wait()
    if HANGS[part]:
        plant(*HANGS[part], stuck)
    checkpoints.save(1, {"x": np.ones(3)}, {})
    checkpoints.save(2, {"x": np.ones(3)}, {})
    assert reached.wait(PATIENCE_SECONDS)
    for _ in range(int(DISK_SECONDS / disk_thread.MOST_SECONDS) + 2):  # the first sees the sign
        disk_thread.look_at_all(DISK_SECONDS)
    line = rf"^checkpoint 1 got nothing done for \d+ s \({part}\) in {tmp_path}: does its disk"
    with pytest.raises(DiskStalled, match=line):
        checkpoints.save(3, {"x": np.ones(3)}, {})
    with pytest.raises(DiskStalled, match=line):
        checkpoints.wait()
    checkpoints.close()
    durable_then = part in ("forcing the events before it to the disk", "deleting older ones")
    assert checkpoints.durable == (1 if durable_then else None)


def test_a_small_state_waits_for_the_disk_too_once_it_is_late(tmp_path):
    """Only saves up to a step are waited for, of several in flight."""
    answers, durable_steps = threading.Semaphore(0), []

    def on_durable(step: int) -> None:
        assert answers.acquire(timeout=PATIENCE_SECONDS)
        durable_steps.append(step)

    with Checkpoints(tmp_path, keep=2, on_durable=on_durable) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"x": np.ones(3)}, {})
        checkpoints.wait(0)
        assert not durable_steps
        answers.release(2)
        checkpoints.wait(2)
        assert durable_steps == [1, 2] and checkpoints.durable >= 2
        answers.release()


def test_what_is_waited_for_is_said_now_and_then(tmp_path, monkeypatch):
    """Twice as seldom each time; a tenth of the usual time, so that this test is short."""
    monkeypatch.setattr(backlog, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(backlog, "NOTE_SECONDS", 0.01)
    lines, answers = [], threading.Event()

    def note(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            answers.set()

    with Checkpoints(
        tmp_path, keep=2, before=lambda: answers.wait(PATIENCE_SECONDS), note=note
    ) as checkpoints:
        checkpoints.save(1, {"x": np.ones(3)}, {})
        checkpoints.wait()
    assert lines[2].startswith(f"waiting until it is durable: checkpoint 1 in {tmp_path}: ")


STALLED = """
import threading
from absl import app
from rlboost_jax import main

def train(*given, **named):
    threading.Thread(target=threading.Event().wait).start()
    raise {}

main.train = train
app.run(main.main, flags_parser=main.parse)
"""


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        ("main.ConfigError('it stalled')", "error: it stalled", 2),
        ("ValueError('a mistake')", "error: a mistake", 1),
        ("main.Interrupted(2)", "interrupted; the same command goes on", 130),
    ],
    ids=["ours", "mistake", "interrupt"],
)
def test_a_trainer_leaves_whatever_threads_it_has(tmp_path, error, said, code):
    """Python would wait for that thread for good; the run's files are closed by then."""
    settings = ["--config=configs/tiny.py", f"--workdir={tmp_path}/run"]
    command = [sys.executable, "-c", STALLED.format(error), *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, said)


HUNG = """
import threading
from pathlib import Path
from absl import app
from rlboost_jax import main
from rlboost_jax.platform.disk_thread import DiskThread
from rlboost_jax.platform import exits

def train(*given, **named):
    disk = DiskThread("checkpoint", stall_seconds=0.01)
    disk.submit(threading.Event().wait, "checkpoint 7", Path("/run"))
    threading.Event().wait()  # for tokens, or in a system call

main.train = train
soon = exits.leave_soon
exits.leave_soon = lambda line, code: soon(line, code, seconds=0.01)
app.run(main.main, flags_parser=main.parse)
"""


def test_a_trainer_ends_when_its_disk_hangs_whatever_its_main_thread_waits_for(tmp_path):
    settings = ["--config=configs/tiny.py", f"--workdir={tmp_path}/run"]
    command = [sys.executable, "-c", HUNG, *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert line.startswith("error: checkpoint 7 got nothing done for"), done.stderr
