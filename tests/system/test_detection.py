"""Every way of losing a server is noticed as what it is, by a real manager on real sockets.

`benchmarks/detection.py` says how soon; its faults are used here.
"""

import asyncio
import re
import subprocess
import sys

import pytest

from benchmarks import detection
from benchmarks.streams import serving
from rlboost_jax.observe.events import read_events
from tests.system.harness import REPOSITORY

pytestmark = pytest.mark.system

COUNT = 6
REASONS = {
    "killed": r"stream closed",
    "stopped": r"silent for 1\.5 s",
    "cut both ways": r"silent for 1\.5 s",
    "cut to manager": r"silent for 1\.5 s",
    "cut from manager": r"deaf for [\d.]+ s: it hears nothing of us",
    "half open": r"silent for 1\.5 s",
    "stuck": r"no progress for 3 s",
}


@pytest.mark.parametrize("fault", REASONS)
def test_each_fault_is_known_for_what_it_is(tmp_path, fault):
    """And so is its absence: a server that is left alone is not lost."""

    async def scenario():
        async with (
            detection.bench(tmp_path) as bench,
            serving(bench.manager(), ["bystander"]),
        ):
            losses = await detection.FAULTS[fault](bench, COUNT)
            assert len(losses) == COUNT
            for loss in losses.values():
                assert loss.seconds >= 0 and re.fullmatch(REASONS[fault], loss.reason), loss
            lost = {e["instance"] for e in read_events(tmp_path) if e["kind"] == "lost"}
            # A bystander that was given work holds it as idly as those that are stuck.
            assert lost - {"bystander"} == losses.keys()
            assert "bystander" not in lost or fault == "stuck"

    asyncio.run(scenario())


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
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    line = ran.stdout.splitlines()[-1]
    assert line.startswith("cable") and line.endswith("silent for 1.5 s"), ran.stdout
