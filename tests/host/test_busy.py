"""How long a thread has run or waited for a processor, by the kernel's count."""

import time
from pathlib import Path

import pytest

from rlboost_jax.host.busy import busy_now, busy_seconds
from rlboost_jax.messages import Renewed

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
    least = (int(ran) + int(waited)) / 1e9
    assert least <= busy_seconds()


def test_an_answer_says_how_busy_the_manager_was() -> None:
    before = busy_seconds()
    answer = busy_now(Renewed(stamp=3.0, lease_seconds=1.5))
    assert (answer.stamp, answer.lease_seconds) == (3.0, 1.5)
    assert before <= answer.busy <= busy_seconds() and answer.busy > 0
