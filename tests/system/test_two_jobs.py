"""Two real runs whose servers share two machines, with kills: the digests of each alone."""

import os
import signal
from contextlib import ExitStack, suppress

import pytest

from tests.shared import made_once
from tests.system.harness import PATIENT, SHORT, Run, complete, prepared

pytestmark = pytest.mark.system

MACHINES = ("one", "two")
DEAR = ("seed=12", "fleet.worth_per_hour=1000")  # outbids the other, whatever is left of its step


@pytest.fixture(scope="session")
def another_calm(tmp_path_factory):
    def make(folder):
        complete(folder / "run", *SHORT, *DEAR)

    return Run(made_once(tmp_path_factory, "another_calm", make) / "run", *SHORT, *DEAR)


@pytest.fixture
def private(tmp_path_factory):
    """A folder of this user's alone, with a short name."""
    folder = tmp_path_factory.mktemp("s")
    folder.chmod(0o700)
    return folder


def without_device(run):
    return [e for e in run.events("resized") if e["detail"]["slots"] == 0]


def test_two_runs_on_one_fleet_end_as_each_alone(short_and_calm, another_calm, tmp_path, private):
    alone = (short_and_calm, another_calm)
    with ExitStack() as stack:
        cheap, dear = runs = [
            stack.enter_context(
                prepared(tmp_path / name, *SHORT, *PATIENT, "fleet.max_instances=0", *more)
            )
            for name, more in (("cheap", ()), ("dear", DEAR))
        ]
        for run in runs:
            run.hold(version=1).start()
        with (
            cheap.at_a_standstill(version=1, servers=False, then=3),
            dear.at_a_standstill(version=1, servers=False),
        ):
            for run in runs:
                for machine in MACHINES:
                    path = private / machine
                    run.serve(f"--name={machine}", f"--neighbour_socket={path}", "--price=1")
            dear.wait_until(lambda: len(dear.events("working")) >= 2, "both machines of the dearer")
            cheap.wait_until(lambda: len(without_device(cheap)) >= 2, "the other without any")
        # Between two steps of the dearer run the other has the machines, and stands still there.
        with cheap.at_a_standstill(version=3) as still:
            killed = still.at_work
            for pid in killed.values():
                os.kill(pid, signal.SIGKILL)
            cheap.wait_until(
                lambda: killed.keys() <= {e["instance"] for e in cheap.events("lost")}, "the losses"
            )
            with suppress(ProcessLookupError):  # it may have ended by now
                os.kill(dear.by_hand[0].pid, signal.SIGKILL)
        for run in runs:
            run.finish()
    for run, reference in zip(runs, alone, strict=True):
        assert run.digests() == reference.digests()
        run.assert_accounts_hold()
        assert not run.events("compiled"), "a size that was never compiled"
    assert sum(row["tokens_preemptible"] for row in dear.metrics()) > 0
    assert without_device(dear), "it let go of nothing between its steps"
