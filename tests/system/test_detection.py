"""Every way of losing a server is noticed as what it is, by a real manager on real sockets.

`benchmarks/detection.py` says how soon; its faults are used here.
"""

import asyncio
import itertools
import re
import subprocess
import sys
import time

import pytest

from benchmarks import detection
from tests.patience import PATIENCE_SECONDS
from tests.system.harness import REPOSITORY

pytestmark = pytest.mark.system

COUNT = 6
REASONS = {
    "killed": r"stream closed",
    "stopped": r"silent for [\d.]+ s",
    "cut both ways": r"silent for [\d.]+ s",
    "cut to manager": r"silent for [\d.]+ s",
    "cut from manager": r"unreachable for [\d.]+ s: it receives nothing from us",
    "half open": r"silent for [\d.]+ s",
    "stuck": r"no progress for [\d.]+ s",
}


# What a machine that stood still for longer than a lease does to servers that are well. How often
# that is, is a figure of the benchmark's ("false"), and that nobody else is lost to it is tested
# in virtual time (tests/manager/test_stalls.py, tests/schedules/invariants.py).
STALL = r"silent for [\d.]+ s|unreachable for [\d.]+ s: it receives nothing from us"


@pytest.mark.parametrize("fault", REASONS)
def test_each_fault_is_known_for_what_it_is(tmp_path, fault):
    """Where the machine stood still for all of them, others are struck."""

    async def struck(workdir):
        workdir.mkdir()
        async with detection.bench(workdir) as bench:
            return await detection.FAULTS[fault](bench, COUNT)

    deadline = time.monotonic() + PATIENCE_SECONDS
    for number in itertools.count():
        losses = asyncio.run(struck(tmp_path / str(number)))
        assert len(losses) == COUNT
        seen = [loss.reason for loss in losses.values() if loss.seconds >= 0]
        assert all(re.fullmatch(f"{REASONS[fault]}|{STALL}", reason) for reason in seen), losses
        if any(re.fullmatch(REASONS[fault], reason) for reason in seen):
            return
        assert time.monotonic() < deadline, losses


@pytest.mark.skipif(not detection.may_make_namespaces(), reason="no network namespaces here")
def test_a_pulled_cable_is_known_for_what_it_is():
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.detection"),
            *(f"--count={COUNT}", "--faults", "cable"),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    line = ran.stdout.splitlines()[-1]
    assert line.startswith("cable") and "silent for … s" in line, ran.stdout
