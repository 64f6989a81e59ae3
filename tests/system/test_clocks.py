"""Somebody sets the wall clock, by years and again and again: nothing of a run goes by it.

Trainer, manager and servers see a clock of ours (`clock.c`), their certificates included.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.system.clocks import YEAR, jumping
from tests.system.harness import PATIENT, SHORT, Run, prepared

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None, reason="preloads a C library"
    ),
]


def test_the_clock_of_a_test_is_seen(set_clock: Callable[[float], None]) -> None:
    program = (
        "import time, datetime; print(time.time(), datetime.datetime.now().timestamp(),"
        " time.monotonic())"
    )

    def seen() -> list[float]:
        ended = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        return list(map(float, ended.stdout.split()))

    before = seen()
    set_clock(3 * YEAR)
    after = seen()
    for one, other in zip(before[:2], after[:2], strict=True):
        assert 3 * YEAR <= other - one < 3 * YEAR + PATIENCE_SECONDS
    assert after[2] - before[2] < PATIENCE_SECONDS


WRITES = """
import os, struct, sys, time
import numpy as np, tensorstore as ts

for number, ahead in enumerate((0, 365 * 86_400, -365 * 86_400)):
    with open(os.environ["RLBOOST_TEST_CLOCK"], "r+b", buffering=0) as clock:
        clock.write(struct.pack("<q", ahead * 10**9))
    store = {"driver": "file", "path": f"{sys.argv[1]}/{number}"}
    metadata = {"shape": [8], "dtype": "<f4"}
    spec = {"driver": "zarr", "kvstore": store, "metadata": metadata}
    array = ts.open(spec, create=True, open=True).result(timeout=float(sys.argv[2]))
    array.write(np.ones(8, np.float32)).result(timeout=float(sys.argv[2]))
    time.sleep(1)  # threads that TensorStore has started end
"""


@pytest.mark.usefixtures("set_clock")
def test_libraries_that_wait_by_the_systems_clock_see_that_one(tmp_path: Path) -> None:
    """TensorStore does nothing until a clock that was set back has caught up."""
    command = [sys.executable, "-c", WRITES, str(tmp_path), str(PATIENCE_SECONDS)]
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)


@pytest.mark.soak
def test_a_clock_that_jumps_all_the_time_changes_no_bit(
    short_and_calm: Run, tmp_path: Path, set_clock: Callable[[float], None]
) -> None:
    with prepared(tmp_path / "run", *SHORT, *PATIENT) as run, jumping(set_clock):
        run.hold(version=1).start()
        run.kill_servers_at_work(1)
        run.finish()
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
    kinds = [event["kind"] for event in run.events()]
    assert kinds.count("lost") == 2 and "quarantined" not in kinds
    times = [event["time"] for event in run.events()]
    assert all(0 <= later - earlier < 600 for earlier, later in pairwise(times))


@pytest.mark.soak
@pytest.mark.parametrize("ahead", [YEAR, -YEAR])
def test_a_start_with_another_clock_goes_on(
    short_and_calm: Run, tmp_path: Path, set_clock: Callable[[float], None], ahead: float
) -> None:
    """All of it is killed in mid-step; the clock is set while nothing runs."""
    set_clock(ahead)
    with prepared(tmp_path / "run", *SHORT, *PATIENT) as run:
        run.hold(version=2).start()
        with run.at_a_standstill(version=2):
            run.close()
        set_clock(0.0)
        run.start().finish()
    assert run.digests() == short_and_calm.digests()
    assert run.events("recovered"), "the journal of that clock was read"
