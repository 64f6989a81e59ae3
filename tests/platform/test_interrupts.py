"""Requests to end come through where Python drops exceptions; in processes that can be ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

PROGRAM = """
import gc, os, signal, sys
from rlboost_jax.platform.interrupts import AGAIN_SECONDS, raise_at

class Stop(BaseException):
    pass

def ask(*_):
    asked.append(True)
    if len(asked) <= TIMES:
        os.kill(os.getpid(), signal.SIGTERM)

class Last:
    __del__ = ask

asked = []
later = []  # it comes again when the place is over, however long that takes
signal.setitimer = lambda *given: later.append(given)
raise_at([signal.SIGINT, signal.SIGTERM], Stop)
try:
    PLACE
    print("went on")
    assert set(later) == {(signal.ITIMER_REAL, AGAIN_SECONDS)}
    signal.raise_signal(signal.SIGALRM)
except Stop as stop:
    print(stop.args, asked == [True] * TIMES)
"""
TRAINER = """
import __main__, os, signal, time
from configs.tiny import get_config

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

def asked(*_):
    Last()  # drops it, and the clock brings it again
    while True:
        time.sleep(1)

__main__._plan = asked
"""
PLACES = {  # with how often each asks
    "a collection": ("gc.callbacks.append(ask); gc.collect(); gc.callbacks.remove(ask)", 2),
    "a finalizer": ("Last()", 1),
    "a fork": ("os.register_at_fork(after_in_parent=ask); os.fork() or os._exit(0)", 1),
}


def said_by(place: str, times: int) -> tuple[str, str]:
    return run(PROGRAM.replace("PLACE", place).replace("TIMES", str(times)))


def run(program: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("place", PLACES)
def test_what_was_dropped_comes_again(place):
    said, errors = said_by(*PLACES[place])
    went_on, stopped = said.splitlines()
    assert (went_on, stopped, errors) == ("went on", f"({signal.SIGTERM:d},) True", "")


def test_one_that_comes_while_an_exception_is_dropped_comes_again():
    report = "sys.unraisablehook = lambda said: ask()\n"
    raises = "Last.__del__ = lambda self: 1 / 0\n    Last()"
    program = PROGRAM.replace("raise_at([", f"{report}raise_at([").replace("PLACE", raises)
    went_on, stopped = run(program.replace("TIMES", "1"))[0].splitlines()
    assert (went_on, stopped) == ("went on", f"({signal.SIGTERM:d},) True")


def test_elsewhere_it_comes_at_once():
    assert said_by("ask()", 1) == (f"({signal.SIGTERM:d},) True\n", "")


def test_other_exceptions_are_reported_as_before():
    place = "Last.__del__ = lambda self: 1 / 0\n    Last()\n    ask()"
    said, errors = said_by(place, 1)
    assert said == f"({signal.SIGTERM:d},) True\n" and "ZeroDivisionError" in errors


def test_a_trainer_hears_what_was_dropped(tmp_path):
    config = tmp_path / "asked.py"
    config.write_text(TRAINER)
    done = subprocess.run(
        [sys.executable, "-m", "rlboost_jax.main", f"--config={config}", "--dry_run"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    line = "interrupted; the same command goes on\n"
    assert (done.stdout, done.stderr) == ("", line)
    assert done.returncode == 128 + signal.SIGTERM
