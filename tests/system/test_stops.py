"""Every process of a run is stopped now and then, for 1 to 60 s, while the wall clock jumps.

    RLBOOST_TEST_STOP_MINUTES=30 python -m pytest -s -m soak tests/system/test_stops.py

A stopped process misses timers, leases and barriers, and finds that time has gone by when it goes
on; whatever waits for it meanwhile has to wait, or to do without. Runs of 40 steps follow one
another until the time is over: 10 minutes, unless that variable says otherwise.
"""

import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.system.clocks import jumping
from tests.system.harness import SHORT, Run, complete, prepared

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak,
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None, reason="preloads a C library"
    ),
]

MINUTES = float(os.environ.get("RLBOOST_TEST_STOP_MINUTES", "10"))
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
PAUSE_SECONDS = 3.0  # of a hand, between two stops
HANDS = 3  # that stop a process each at the same time
BEHIND = 3
SETTINGS = (*SHORT, "num_steps=40", f"checkpoint.max_behind={BEHIND}")


class Stops:
    """Hands that stop processes at random until the time is over or the run is.

    Args:
        until: by the monotonic clock.
    """

    def __init__(self, run: Run, seed: int, until: float) -> None:
        self._run, self._until, self._over = run, until, threading.Event()
        self.done: Counter[str] = Counter()  # by what was stopped
        self._hands = [
            threading.Thread(target=self._stop_some, args=(random.Random(f"{seed}/{hand}"),))
            for hand in range(HANDS)
        ]

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        for hand in self._hands:
            hand.start()
        try:
            yield
        finally:
            self._over.set()
            for hand in self._hands:
                hand.join()

    def _stop_some(self, rng: random.Random) -> None:
        while not self._over.wait(rng.uniform(0, 2 * PAUSE_SECONDS)):
            if time.monotonic() > self._until:
                return
            if not (found := self._run.processes()):
                continue
            kind = rng.choice(sorted(set(map(_kind, found.values()))))  # there are many relays
            pid = rng.choice(sorted(pid for pid in found if _kind(found[pid]) == kind))
            seconds = SHORTEST_SECONDS * (LONGEST_SECONDS / SHORTEST_SECONDS) ** rng.random()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.done[kind] += 1
                try:
                    self._over.wait(seconds)  # the fault itself
                finally:
                    os.kill(pid, signal.SIGCONT)


def _kind(command: str) -> str:
    """What a process of a run is, by its command line."""
    words = command.split()
    name = next((w for w in words if w.startswith("rlboost_jax.") or w.endswith(".py")), words[0])
    if name == "rlboost_jax.main":
        return "trainer" if "--nosupervise" in words else "supervisor"
    return name.removeprefix("rlboost_jax.").rpartition("/")[2]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return complete(tmp_path_factory.mktemp("calm") / "run", *SETTINGS)


def test_processes_that_are_stopped_at_random_change_no_bit_and_leave_nothing_stuck(
    calm: Run, tmp_path: Path, set_clock: Callable[[float], None]
) -> None:
    until, number = time.monotonic() + 60 * MINUTES, 0
    while time.monotonic() < until:
        number += 1
        began = time.monotonic()
        with (
            prepared(tmp_path / f"run-{number}", *SETTINGS, options=("--supervise",)) as run,
            jumping(set_clock),
        ):
            stops = Stops(run, number, until)
            run.start()
            with stops.going_on():
                run.process.end(patience_seconds=60 * MINUTES + PATIENCE_SECONDS)
            assert run.process.returncode == 0, (run.process.output + run.process.errors)[-4000:]
            behind = [row["step"] - row["durable_step"] for row in run.metrics()]
            print(
                f"run {number}: {time.monotonic() - began:.0f} s, stopped {dict(stops.done)}; "
                f"durable at most {max(behind)} steps behind, "
                f"{run.process.errors.count('starting it again')} restarts",
                flush=True,
            )
            assert run.digests() == calm.digests()
            assert max(behind) <= BEHIND
            run.assert_accounts_hold()
            run.assert_nothing_is_left()
