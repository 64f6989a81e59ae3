"""How long a thread has run or waited for a processor, by the kernel's count."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlboost_jax.messages import Renewed
from rlboost_jax.platform.busy import busy_now, busy_seconds, waited_seconds

COUNTED = Path("/proc/thread-self/schedstat").exists()
pytestmark = pytest.mark.skipif(not COUNTED, reason="nobody counts it here")
SPIN_SECONDS = 0.05  # of a processor


def spin() -> None:
    end = time.thread_time() + SPIN_SECONDS
    while time.thread_time() < end:
        pass


def test_what_a_thread_runs_counts() -> None:
    """The kernel brings its count up to date at its ticks, so half of it is sure to be there."""
    busy = busy_seconds()
    spin()
    assert busy_seconds() - busy > SPIN_SECONDS / 2


def test_a_thread_that_waits_for_its_processor_is_busy() -> None:
    """The kernel's own line, read here once more: both of its numbers, in seconds."""
    spin()
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    least = int(ran) / 1e9 + int(waited) / 1e9  # as rounded as what it is compared with
    assert least <= busy_seconds()


def test_a_process_that_had_no_processor_has_waited() -> None:
    """Two on one processor, which both would run all the time; one that sleeps waits for none."""
    spins = "import os; os.sched_setaffinity(0, {int(os.sys.argv[1])})\nwhile True: pass"
    processor = str(min(os.sched_getaffinity(0)))
    both = [subprocess.Popen([sys.executable, "-c", spins, processor]) for _ in range(2)]
    try:
        while not all(waited_seconds(each.pid) > SPIN_SECONDS for each in both):
            assert all(each.poll() is None for each in both)
            time.sleep(0.01)
    finally:
        for each in both:
            each.kill()
            each.wait()
    assert waited_seconds(both[0].pid) == 0.0, "it has ended"


def test_an_answer_says_how_busy_the_manager_was() -> None:
    before = busy_seconds()
    answer = busy_now(Renewed(stamp=3.0, lease_seconds=1.5))
    assert (answer.stamp, answer.lease_seconds) == (3.0, 1.5)
    assert before <= answer.busy <= busy_seconds() and answer.busy > 0
