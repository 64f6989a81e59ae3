import subprocess
import sys

import pytest

from tests.patience import PATIENCE_SECONDS

WITHOUT = """
import sys, threading
from rlboost_jax.platform.without_memory import leave_without_memory

leave_without_memory()

def fail(*given):
    raise {error}

{met}
"""
STARTING = """
class Thread(threading.Thread):
    _set_ident = fail  # before it tells `start` that it has begun

Thread(daemon=True).start()
"""
WORKING = """
thread = threading.Thread(target=fail)
thread.start()
thread.join()
"""
FREED = """
type("Freed", (), {"__del__": fail})()
"""


def met(where: str, error: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT.format(error=error, met=where)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "error", ["MemoryError", "OSError(12, 'mmap')", 'RuntimeError("can\'t start new thread")']
)
@pytest.mark.parametrize("where", [STARTING, WORKING, FREED], ids=["starting", "working", "freed"])
def test_a_process_without_memory_is_left_by_any_thread(where, error):
    done = met(where, error)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no ") and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith("then the same command goes on\n")


@pytest.mark.parametrize("error", ["ValueError('another')", "BlockingIOError(11, 'another')"])
@pytest.mark.parametrize("where", [WORKING, FREED], ids=["working", "freed"])
def test_other_errors_are_printed_as_ever(where, error):
    done = met(where, error)
    assert done.returncode == 0
    assert "Traceback" in done.stderr and "another" in done.stderr
