"""Which process is which."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlboost_jax.platform import process_liveness

SLEEPER = "import sys; print(flush=True); sys.stdin.read()"
LOOKS = 10_000


@pytest.fixture(params=["ours", "another"])
def process(request):
    """A process whose command line names this package or does not."""
    comment = "  # rlboost_jax" if request.param == "ours" else ""
    command, pipe = [sys.executable, "-c", SLEEPER + comment], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None and process.stdout.readline(), "it has begun"
    yield process, request.param == "ours"
    process.kill()
    process.communicate()


def by_ps(seconds: float) -> str:
    """How ps writes a time."""
    return time.strftime("%a %b %e %H:%M:%S %Y", time.gmtime(seconds))


NOWHERE = Path("/nowhere")


@pytest.fixture(params=["/proc", "ps"])
def system(request, monkeypatch):
    """The place that the answer comes from; where there is none, from ps."""
    if request.param == "ps":
        if not any(os.access(f"{folder}/ps", os.X_OK) for folder in os.get_exec_path()):
            pytest.skip("no ps here")
        monkeypatch.setenv("COLUMNS", "20")  # of a terminal, which is no matter
        return NOWHERE
    if not process_liveness.HAS_PROC:
        pytest.skip("no /proc here")
    return process_liveness.PROC


def test_only_a_process_of_ours_that_began_then_runs(system, process):
    child, ours = process
    started = process_liveness.start_time(child.pid, system)
    assert started
    assert process_liveness.runs(child.pid, started, system) == ours
    assert not process_liveness.runs(child.pid, "another time", system)
    assert not process_liveness.runs(child.pid, "", system)
    child.kill()
    child.wait()
    assert process_liveness.start_time(child.pid, system) == ""
    assert not process_liveness.runs(child.pid, started, system)


@pytest.mark.parametrize(
    "began",
    [
        pytest.param(1_795_358_021, id="in the afternoon"),
        pytest.param(1_793_577_599, id="just before midnight"),  # of the 1st, a day of one digit
        pytest.param(1_798_761_599.5, id="just before the new year"),
    ],
)
def test_a_process_is_the_same_however_ps_rounds(began):
    """The record is one of these readings, each look at the process another."""
    rng = random.Random(0)
    readings = [by_ps(began + rng.uniform(-0.999, 0.999)) for _ in range(LOOKS)]
    records = sorted(set(readings))
    assert len(records) > 1
    assert all(process_liveness.same_start(reading, rng.choice(records)) for reading in readings)


@pytest.mark.parametrize("away", [-86_400, -3600, -60, -3, 3, 60, 3600, 86_400])
def test_a_process_that_began_at_another_time_is_another(away):
    for began in range(1_795_358_000, 1_795_358_060):
        assert not process_liveness.same_start(by_ps(began), by_ps(began + away))


@pytest.mark.parametrize("record", ["", "4243", "another time", "Sun Nov 99 14:33:41 2026"])
@pytest.mark.parametrize("reading", ["", "4242", "Sun Nov 22 14:33:41 2026"])
def test_what_is_no_time_of_ps_is_compared_to_the_letter(reading, record):
    """Times of /proc are numbers that may differ by one in two processes."""
    assert not process_liveness.same_start(reading, record)
    if reading:
        assert process_liveness.same_start(reading, reading)


def test_ps_says_the_same_in_all_places(process, monkeypatch):
    if not any(os.access(f"{folder}/ps", os.X_OK) for folder in os.get_exec_path()):
        pytest.skip("no ps here")
    child, ours = process
    started = process_liveness.start_time(child.pid, NOWHERE)
    assert process_liveness._seconds(started) is not None
    for zone, language in (("Asia/Tokyo", "C"), ("America/New_York", "de_DE.UTF-8"), ("", "")):
        monkeypatch.setenv("TZ", zone)
        monkeypatch.setenv("LC_ALL", language)
        assert process_liveness.runs(child.pid, started, NOWHERE) == ours
    began = process_liveness._seconds(started)
    for away in (-3, 3):
        assert not process_liveness.runs(child.pid, by_ps(began + away), NOWHERE)


def test_after_the_next_start_of_the_system_it_is_another(tmp_path):
    """It has the same id and command, and began as long after the start."""
    (tmp_path / "self").mkdir()
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "42").mkdir()
    (tmp_path / "42/stat").write_text("42 (python) S " + " ".join(map(str, range(4, 30))))
    (tmp_path / "42/cmdline").write_bytes(b"python\0-m\0rlboost_jax.manager\0")
    boot = tmp_path / "sys/kernel/random/boot_id"
    boot.write_text("7e0c-before\n")
    started = process_liveness.start_time(42, tmp_path)
    assert process_liveness.runs(42, started, tmp_path)
    assert process_liveness.runs(42, "22", tmp_path)  # as an earlier release wrote it
    assert not process_liveness.runs(42, "23", tmp_path)
    boot.write_text("19ab-after\n")
    assert not process_liveness.runs(42, started, tmp_path)
