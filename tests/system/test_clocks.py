"""Somebody sets the wall clock, by years and again and again: nothing of a run goes by it.

Trainer, manager and servers see a clock of ours (`clock.c`), their certificates included.
"""

import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.system.harness import PATIENT, SHORT, Run, prepared

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None, reason="preloads a C library"
    ),
]

YEAR = 365 * 86_400
PAUSE_SECONDS = 0.05  # between two settings of the clock


@pytest.fixture
def set_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """`set_clock(seconds)`: by which the clock of all that is started from now on is ahead."""
    library, file = tmp_path / "clock.so", tmp_path / "clock"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=300
    )
    file.write_bytes(bytes(8))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("RLBOOST_TEST_CLOCK", str(file))
    with open(file, "r+b", buffering=0) as clock:

        def set_clock(seconds: float) -> None:
            clock.seek(0)
            clock.write(struct.pack("<q", int(seconds * 1e9)))

        yield set_clock


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


@pytest.mark.soak
def test_a_clock_that_jumps_all_the_time_changes_no_bit(
    short_and_calm: Run, tmp_path: Path, set_clock: Callable[[float], None]
) -> None:
    """A year forward, a year back, to the truth and two hours behind, twenty times a second."""
    over = threading.Event()

    def jump() -> None:
        for seconds in cycle((YEAR, -YEAR, 0.0, -7200.0)):
            set_clock(seconds)
            if over.wait(PAUSE_SECONDS):
                return

    with prepared(tmp_path / "run", *SHORT, *PATIENT) as run:
        jumping = threading.Thread(target=jump, daemon=True)
        jumping.start()
        try:
            run.hold(version=1).start()
            run.kill_servers_at_work(1)
            run.finish()
        finally:
            over.set()
            jumping.join()
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
