"""Which process is which."""

import os
import subprocess
import sys

import pytest

from rlboost_jax import processes

SLEEPER = "import time; time.sleep(600)"


@pytest.fixture(params=["ours", "another"])
def process(request):
    """A process whose command line names this package or does not."""
    comment = "  # rlboost_jax" if request.param == "ours" else ""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER + comment])
    yield process, request.param == "ours"
    process.kill()
    process.wait()


@pytest.fixture(params=["/proc", "ps"])
def system(request, monkeypatch):
    """Where the answer comes from."""
    if request.param == "ps":
        if not any(os.access(f"{folder}/ps", os.X_OK) for folder in os.get_exec_path()):
            pytest.skip("no ps here")
        monkeypatch.setattr(processes, "HAS_PROC", False)
    elif not processes.HAS_PROC:
        pytest.skip("no /proc here")


def test_only_a_process_of_ours_that_began_then_runs(system, process):
    child, ours = process
    started = processes.start_time(child.pid)
    assert started
    assert processes.runs(child.pid, started) == ours
    assert not processes.runs(child.pid, "another time")
    assert not processes.runs(child.pid, "")
    child.kill()
    child.wait()
    assert processes.start_time(child.pid) == ""
    assert not processes.runs(child.pid, started)
