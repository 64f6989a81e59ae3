"""`python -m tests` tells what failed, how to see it again, and what was left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests import __main__ as suite
from tests import conditions
from tests.patience import PATIENCE_SECONDS
from tests.processes import marked
from tests.system.harness import wait_until

TESTS = """
import subprocess, sys
import pytest

def test_that_passes(): pass

def test_that_fails(): assert False

@pytest.mark.parametrize("place", ["a b"])
def test_of_a_place(place): assert False

def test_that_is_skipped(): pytest.skip("no cable")

@pytest.fixture
def broken():
    yield
    raise OSError("a fixture that cannot clean up")

def test_whose_end_fails(broken): pass
"""
SLEEPER = """
import subprocess, sys

def test_that_leaves_a_process_and_a_file():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    open("left.txt", "w").close()
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty repository in place of this one."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "exclude").write_text("__pycache__\ntest_*.py\n")
    monkeypatch.setenv("PYTHONPATH", str(suite.ROOT))
    before = signal.getsignal(signal.SIGINT)
    yield folder
    signal.signal(signal.SIGINT, before)


def of_pytest(file: Path, name: str = "unit") -> suite.Part:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "tests.tally", "-p", "no:cacheprovider")
    return suite.Part(name, ((*command, "--rootdir=.", file.name),), tests=True)


def run_of(root: Path, *parts: suite.Part, chosen: Sequence[str] = (), session: str = "") -> int:
    """The exit code of a run of these parts; its folders are made beside the checkout."""
    temporary = root.parent / "own"
    temporary.mkdir()
    return suite.main(chosen, root=root, offered=parts, session=session, temporary=temporary)


def test_each_failure_is_named_with_a_command_for_just_that(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkout / "test_some.py").write_text(TESTS)
    bad = suite.Part("lint", ((sys.executable, "-c", "import sys; sys.exit(3)"),))
    assert run_of(checkout, bad, of_pytest(checkout / "test_some.py")) == 1
    said = capfd.readouterr().out
    failed = said.partition("failed; each alone by\n")[2].partition("\n\n")[0].splitlines()
    assert failed == [
        f"  {sys.executable} -c 'import sys; sys.exit(3)'",  # the tests ran after that
        f"  {sys.executable} -m pytest test_some.py::test_that_fails",
        f"  {sys.executable} -m pytest 'test_some.py::test_of_a_place[a b]'",
        f"  {sys.executable} -m pytest test_some.py::test_whose_end_fails",
    ]
    assert "       1    no cable\n" in said
    (counts,) = [line.split() for line in said.splitlines() if line.startswith("  unit ")]
    assert counts[:4] == ["unit", "1", "3", "1"]


def test_a_file_that_cannot_be_imported_is_a_failure(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkout / "test_some.py").write_text("import nothing_of_that_name")
    assert run_of(checkout, of_pytest(checkout / "test_some.py")) == 1
    assert f"  {sys.executable} -m pytest test_some.py\n" in capfd.readouterr().out


def test_what_is_left_behind_is_reported_and_ended(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkout / "test_some.py").write_text(SLEEPER)
    session = uuid.uuid4().hex
    assert run_of(checkout, of_pytest(checkout / "test_some.py"), session=session) == 1
    left = capfd.readouterr().out.partition("left behind\n")[2]
    assert "was left running" in left and "time.sleep(3600)" in left
    assert "  file left.txt\n" in left
    assert "failed; each alone" not in left
    wait_until(lambda: not marked(f"{suite.MARK}={session}"), "end of it")


def test_a_part_beside_another_is_reported_after_it_and_spares_its_processes(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkout / "test_some.py").write_text(SLEEPER)
    beside = replace(of_pytest(checkout / "test_some.py", "types"), beside=True)
    child = """
import pathlib, subprocess, sys, time
with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
    print("not yet over", flush=True)
    while not pathlib.Path("cleared").exists():
        assert child.poll() is None, "ended by another part"
        time.sleep(0.02)  # the other part is to have this core
"""
    clear_away = suite.clear_away

    def and_tell(mark: str) -> list[str]:
        found = clear_away(mark)
        (checkout / "cleared").touch()
        return found

    monkeypatch.setattr(suite, "clear_away", and_tell)
    (checkout / ".git" / "info" / "exclude").write_text("__pycache__\ntest_*.py\ncleared\n")
    assert run_of(checkout, beside, suite.Part("unit", ((sys.executable, "-c", child),))) == 1
    said = capfd.readouterr().out
    assert said.index("\nunit\nnot yet over\n") < said.index("\ntypes\n") < said.index("1 passed")
    assert "time.sleep(3600) (after types)" in said and "failed; each alone" not in said


def test_a_part_beside_others_goes_on_while_the_next_one_runs(checkout: Path) -> None:
    waits = f"""
import pathlib, sys, time
end = time.monotonic() + {PATIENCE_SECONDS}
while not pathlib.Path("second").exists():
    if time.monotonic() > end: sys.exit("the second part has not begun")
    time.sleep(0.02)
pathlib.Path("second").unlink()
"""
    beside = suite.Part("types", ((sys.executable, "-c", waits),), beside=True)
    first, second = suite.Part("unit", (("true",),)), suite.Part("system", (("touch", "second"),))
    assert run_of(checkout, beside, first, second) == 0


def test_beside_a_load_parts_run_one_after_the_other_and_none_is_the_least(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tells = (sys.executable, "-c", f"import os; print(os.nice(0) - {os.nice(0)})")
    beside = suite.Part("types", (tells,), beside=True)
    unit = suite.Part("unit", (("echo", "after"),))
    assert run_of(checkout, beside, unit, chosen=["--busy=1"]) == 0
    assert capfd.readouterr().out.startswith("\ntypes\n0\n\nunit\nafter\n")


def test_an_interrupt_ends_what_runs_beside(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sleep = f"""
import time
open("here", "w").close()
time.sleep({PATIENCE_SECONDS})
open("slept", "w").close()
"""
    strike = """
import os, pathlib, signal, time
while not pathlib.Path("here").exists(): time.sleep(0.02)
os.kill(os.getppid(), signal.SIGINT)
input()
"""
    types = suite.Part("types", ((sys.executable, "-c", sleep),), beside=True)
    assert run_of(checkout, types, suite.Part("unit", ((sys.executable, "-c", strike),))) == 1
    assert "an interrupted part" in capfd.readouterr().out
    assert not (checkout / "slept").exists(), "it was waited for, not ended"


def test_a_green_run_leaves_no_folder(
    checkout: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (checkout / "test_some.py").write_text("def test_that_passes(tmp_path): pass")
    some, lint = of_pytest(checkout / "test_some.py"), suite.Part("lint", (("true",),))
    assert run_of(checkout, some, lint, chosen=["unit"]) == 0
    said = capfd.readouterr().out
    assert "all green" in said and "lint" not in said
    assert not list((tmp_path / "own").iterdir())


def test_a_part_that_does_not_exist_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        suite.main(["units"])
    assert "no part 'units'; there are lint, types, h100, unit, system" in capsys.readouterr().err


def test_every_system_test_is_in_the_system_part() -> None:
    (system,) = [part for part in suite.parts(2, None) if part.name == "system"]
    named = {name for name in system.commands[-1] if name.endswith(".py")}
    marks = {f"tests/system/{path.name}" for path in Path(__file__).parent.glob("system/test_*.py")}
    assert marks <= named


def test_busy_processes_are_gone_afterwards() -> None:
    with conditions.busy(2):
        children = multiprocessing.active_children()
        assert len(children) >= 2 and all(child.is_alive() for child in children)
    assert not set(children) & set(multiprocessing.active_children())


@pytest.mark.parametrize(
    ("version", "written"),
    [
        (1, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "25000", "cgroup.procs": "4711"}),
        (2, {"cpu.max": "25000 100000", "cgroup.procs": "4711"}),
    ],
)
def test_a_throttled_process_has_a_group_of_its_own(
    version: int, written: dict[str, str], tmp_path: Path
) -> None:
    if version == 1:
        (tmp_path / "cpu").mkdir()
    group = conditions._group(4711, 0.25, tmp_path)
    assert group.parent == (tmp_path / "cpu" if version == 1 else tmp_path)
    assert {path.name: path.read_text() for path in group.iterdir()} == written
