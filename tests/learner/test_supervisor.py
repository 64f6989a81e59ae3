"""What a supervisor decides, and what it does about real processes that are no trainers."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from configs import tiny
from rlboost_jax.learner import supervisor as supervising
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.learner.supervisor import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    History,
    RunProgress,
    Supervisor,
    after_end,
    progress_of,
)
from rlboost_jax.platform import exits
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.trust.run_files import read_record
from tests.patience import PATIENCE_SECONDS

KILLED = exits.by_signal(signal.SIGKILL)
START = History(reached=RunProgress(step=3, checkpoint=4))


def decisions(*ends: tuple[int, RunProgress], max_restarts: int = 3) -> list[float | None]:
    """The pauses after these ends, one after the other."""
    history, pauses = START, []
    for code, reached in ends:
        history, pause = after_end(history, code, reached, max_restarts=max_restarts)
        pauses.append(pause)
    return pauses


@pytest.mark.parametrize("code", [KILLED, exits.BROKEN, exits.by_signal(signal.SIGSEGV)])
def test_one_that_was_killed_or_broke_is_started_again(code):
    assert decisions((code, RunProgress(step=4, checkpoint=5))) == [FIRST_PAUSE_SECONDS]


@pytest.mark.parametrize("code", [exits.COMPLETE, exits.MISTAKE, 130, 143])
def test_one_that_ended_as_it_should_is_not(code):
    assert decisions((code, RunProgress(step=9, checkpoint=9))) == [None]


def test_failures_without_progress_are_counted_and_pauses_double():
    same = (KILLED, START.reached)
    assert decisions(same, same, same, same) == [0.5, 1.0, 2.0, None]
    assert decisions(same, max_restarts=0) == [None]
    long = decisions(*[same] * 20, max_restarts=20)
    assert long[-1] == LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize("further", [RunProgress(step=4, checkpoint=4), RunProgress(checkpoint=5)])
def test_a_row_or_a_checkpoint_is_progress(further):
    same = (KILLED, START.reached)
    assert decisions(same, same, same, (KILLED, further), same) == [0.5, 1.0, 2.0, 0.5, 0.5]


def test_a_row_written_again_is_no_progress():
    # Rows behind the last checkpoint are taken out by each start and written again.
    there, back = RunProgress(step=4, checkpoint=4), RunProgress(step=3, checkpoint=4)
    ends = [(KILLED, there), (KILLED, back), (KILLED, there), (KILLED, there), (KILLED, back)]
    assert decisions(*ends) == [0.5, 0.5, 1.0, 2.0, None]


def test_progress_is_read_from_the_folder(tmp_path):
    assert progress_of(tmp_path / "nowhere") == RunProgress()
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n{"ste')
    for name in ("0", "2", "3.orbax-checkpoint-tmp"):  # the last is in the making
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert progress_of(tmp_path) == RunProgress(step=1, checkpoint=2, complete=(0, 2))
    (tmp_path / "checkpoints" / "4.broken").mkdir()
    assert progress_of(tmp_path).broken == {4}


def test_a_run_that_went_back_is_measured_from_there():
    """Checkpoint 4 broke, and a start went back to 3: rows from 3 on are new, those before not."""

    def back(step, *complete):
        return RunProgress(
            step=step, checkpoint=max(complete), complete=complete, broken=frozenset({4})
        )

    stuck = (KILLED, back(2, 2, 3))
    assert decisions(stuck, stuck, stuck, stuck) == [0.5, 1.0, 2.0, None]
    assert decisions(stuck, (KILLED, back(3, 3, 4)), stuck) == [0.5, 0.5, 0.5]
    again = (KILLED, back(3, 3, 4))  # 4 is written, breaks, and is written again
    assert decisions(again, again, again, again) == [0.5, 0.5, 1.0, 2.0]


TRAINER = """
    import json, os, signal, sys, time
    from pathlib import Path

    workdir, *ends = sys.argv[1:]
    folder = Path(workdir)
    starts = folder / "starts"
    with starts.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    number = len(starts.read_text().splitlines()) - 1
    if ends[number] == "step":
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": number}) + "\\n")
    if ends[number] in ("step", "kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if ends[number] == "wait":
        def asked(number, frame):
            (folder / "asked").write_text(str(number))
            sys.exit(7)
        signal.signal(signal.SIGTERM, asked)
        signal.signal(signal.SIGINT, asked)
        (folder / "waiting").touch()
        while True:
            time.sleep(60)
    sys.exit(int(ends[number]))
"""


@pytest.fixture
def trainer(tmp_path: Path) -> list[str]:
    """A command that ends in the given ways, one start after the other."""
    program = tmp_path / "trainer.py"
    program.write_text(textwrap.dedent(TRAINER))
    (tmp_path / "run").mkdir()
    return [sys.executable, str(program), str(tmp_path / "run")]


def supervised(trainer: list[str], *ends: str, max_restarts: int = 3) -> tuple[int, int, list[str]]:
    """(exit code, number of starts, what people were shown)."""
    workdir, notes = Path(trainer[-1]), []
    code = Supervisor(
        [*trainer, *ends],
        workdir,
        max_restarts=max_restarts,
        first_pause_seconds=0.05,
        note=notes.append,
    ).run()
    return code, len((workdir / "starts").read_text().split()), notes


def test_it_goes_on_until_the_trainer_is_done(trainer):
    code, starts, notes = supervised(trainer, "step", "1", "kill", "0")
    assert (code, starts) == (0, 4)
    assert notes == [
        "the trainer was ended by SIGKILL; starting it again in 0.05 s",
        "the trainer ended with code 1; starting it again in 0.05 s (1 of 3)",
        "the trainer was ended by SIGKILL; starting it again in 0.1 s (2 of 3)",
    ]


def test_it_ends_with_the_code_of_a_mistake(trainer):
    assert supervised(trainer, "step", "2")[:2] == (2, 2)


def test_it_gives_up(trainer):
    code, starts, notes = supervised(trainer, "kill", "kill", "kill", max_restarts=1)
    assert (code, starts) == (KILLED, 2)
    assert "2 times without a new step or checkpoint (--max_restarts=1)" in notes[-1]


def child(
    workdir: Path,
    *command: str,
    max_restarts: int = 3,
    pause_seconds: float = FIRST_PAUSE_SECONDS,
) -> subprocess.Popen[str]:
    """A supervisor in a process, to send signals to."""
    source = (
        "import signal, sys; from pathlib import Path; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a nohup of ours is no theirs
        "from rlboost_jax.learner.supervisor import Supervisor; "
        f"sys.exit(Supervisor({list(command)!r}, Path({str(workdir)!r}), "
        f"max_restarts={max_restarts}, first_pause_seconds={pause_seconds}).run())"
    )
    return subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_trainers_code_is_its_own(trainer, number):
    workdir = Path(trainer[-1])
    supervisor = child(workdir, *trainer, "wait", "0")
    wait_for(workdir / "waiting")
    supervisor.send_signal(number)
    _, errors = supervisor.communicate(timeout=PATIENCE_SECONDS)
    assert supervisor.returncode == 7, errors
    assert (workdir / "asked").read_text() == str(int(number))
    assert len((workdir / "starts").read_text().split()) == 1, "and it is not started again"


def test_a_signal_between_two_starts_ends_it_too(trainer):
    workdir = Path(trainer[-1])
    supervisor = child(workdir, *trainer, *["kill"] * 20, max_restarts=20, pause_seconds=600.0)
    assert supervisor.stderr is not None
    while "in 600 s" not in supervisor.stderr.readline():
        assert supervisor.poll() is None
    supervisor.terminate()
    supervisor.communicate(timeout=PATIENCE_SECONDS)
    assert supervisor.returncode == exits.by_signal(signal.SIGTERM)
    assert len((workdir / "starts").read_text().split()) == 1


def test_an_interrupt_in_the_terminal_reaches_the_trainer_once(trainer):
    workdir = Path(trainer[-1])
    supervisor = child(workdir, *trainer, "wait")
    wait_for(workdir / "waiting")
    pid = int((workdir / "starts").read_text())
    assert os.getpgid(pid) == pid != os.getpgid(supervisor.pid)
    supervisor.send_signal(signal.SIGINT)
    supervisor.communicate(timeout=PATIENCE_SECONDS)


def test_a_manager_that_was_killed_comes_back_before_the_trainer(trainer):
    """And with the supervisor's end it goes."""
    workdir = Path(trainer[-1])
    config = tiny.get_config()
    config.fleet.provider = "none"
    write_run_config(workdir / "config.json", run_config(config), "run")
    ManagerProcess(workdir, "run").locate()
    before = read_record(workdir)
    assert before is not None
    kill = f"import os; os.kill({before.pid}, 9); os.kill(os.getpid(), 9)"
    supervisor = child(workdir, sys.executable, "-c", kill, pause_seconds=600.0)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (after := read_record(workdir)) is None or after.pid == before.pid or not after.lives:
        assert time.monotonic() < deadline and supervisor.poll() is None
        time.sleep(0.02)
    supervisor.terminate()
    supervisor.communicate(timeout=PATIENCE_SECONDS)
    assert not after.lives
    events = [json.loads(line) for line in (workdir / "events.jsonl").read_text().splitlines()]
    assert not [event for event in events if event["kind"] == "journal"]


STANDING = """
    import json, os, signal, sys, threading, time
    from pathlib import Path
    from rlboost_jax.platform import stacks
    from rlboost_jax.platform.pulse import PULSE, show_pulse

    folder, *ends = Path(sys.argv[1]), *sys.argv[2:]
    starts = folder / "starts"
    number = len(starts.read_text().splitlines()) if starts.exists() else 0
    def begun():  # whoever is ended before it gets there is started again as the same
        with starts.open("a") as file:
            file.write(f"{os.getpid()}\\n")
    stacks.dump_when_asked()
    show_pulse(os.environ)
    with stacks.StacksFile(stacks.stacks_path(folder)), PULSE.phase("micro-batch"):
        if ends[number] == "slow":
            begun()
            for _ in range(30):
                PULSE.beat()
                time.sleep(0.05)
            sys.exit(0)
        if ends[number] == "no SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if ends[number] == "complete":
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        def stands_here():
            begun()
            if ends[number] == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            threading.Event().wait()
        stands_here()
"""


@pytest.fixture
def unhurried(monkeypatch):
    """A start takes as long as it takes, and so does one that writes down where it stands."""

    def bound(patience, given):
        return given if patience.phase else PATIENCE_SECONDS

    monkeypatch.setattr(supervising, "bound_seconds", bound)
    monkeypatch.setattr(supervising, "DUMP_SECONDS", 60.0)


@pytest.mark.parametrize("how", ["waiting", "no SIGTERM", "stopped"])
def test_one_that_stands_still_says_where_and_is_started_again(tmp_path, how, unhurried):
    """And one that is slow and gets on is left alone."""
    program, workdir, notes = tmp_path / "trainer.py", tmp_path / "run", []
    program.write_text(textwrap.dedent(STANDING))
    workdir.mkdir()
    code = Supervisor(
        [sys.executable, str(program), str(workdir), how, *["slow"] * 30],
        workdir,
        max_restarts=30,  # a machine may be too busy for the bound below
        stall_seconds=1.0,
        watch_seconds=0.05,
        first_pause_seconds=0.05,
        leave_seconds=0.2,
        note=notes.append,
    ).run()
    assert code == 0 and len((workdir / "starts").read_text().split()) >= 2
    assert re.match(r"the trainer shows no progress for \d+ s \(", notes[0])
    assert "(1 of 30)" in notes[1], "it was a failure without progress"
    where = "stands_here" if how != "stopped" else program.name  # it goes on, says where, and ends
    assert where in (workdir / "logs" / "stacks.txt").read_text()


def test_one_that_is_complete_at_the_last_moment_is_complete(tmp_path, unhurried):
    program, workdir, notes = tmp_path / "trainer.py", tmp_path / "run", []
    program.write_text(textwrap.dedent(STANDING))
    workdir.mkdir()
    code = Supervisor(
        [sys.executable, str(program), str(workdir), *["complete"] * 13],
        workdir,
        max_restarts=12,  # on a busy machine one may be ended before it has begun
        stall_seconds=1.0,
        watch_seconds=0.05,
        first_pause_seconds=0.05,
        leave_seconds=PATIENCE_SECONDS,
        note=notes.append,
    ).run()
    assert code == 0
    said = re.match(r"the trainer shows no progress for \d+ s \(", notes[-1])
    assert said, "and no more is said"


def test_one_that_was_killed_and_is_not_gone_is_said(tmp_path):
    """The kernel waits for a disk on its behalf."""

    class Unkillable(subprocess.Popen):
        def __init__(self) -> None:
            self.pid = 7

        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                raise subprocess.TimeoutExpired("trainer", timeout)
            return -signal.SIGKILL  # when the disk answers

    notes: list[str] = []
    supervisor = Supervisor([], tmp_path, max_restarts=0, note=notes.append)
    assert supervisor._gone(Unkillable()) == 137
    assert notes[0].startswith("the trainer (process 7) was killed and is not gone")
