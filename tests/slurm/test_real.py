"""Real jobs of a real Slurm: preempted with notice, requeued, their manager killed; same bits.

    make test-slurm

For root, where Debian's slurm-wlm and munge are. The contract's tests run over it as well.
"""

import functools
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.system.conftest import short_and_calm  # noqa: F401
from tests.system.elsewhere import assert_secrets_are_kept, busy, joined, reap
from tests.system.harness import PATIENT, SHORT, Run, running, wait_until

pytestmark = pytest.mark.system

JOBS = 6
SETTINGS = (
    *SHORT,
    *PATIENT,
    "fleet.provider=slurm",
    f"fleet.max_instances={JOBS}",
    "fleet.slurm.partitions=spot",
    "fleet.slurm.minutes=30",
    "fleet.slurm.poll_seconds=0.5",
    "fleet.notice_signal=SIGUSR1",
    "fleet.notice_seconds=50",
    # Of the tests, besides what jobs get by default.
    "fleet.slurm.export=PATH,HOME,PYTHONPATH,RLBOOST_TEST_WORKDIR,RLBOOST_TEST_PACE",
)


def of_slurm(environment: dict[str, str], *words: str, given: str = "") -> str:
    return subprocess.run(
        words,
        env={**os.environ, **environment},
        input=given,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def jobs(environment: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Number and state of each job of a run that is not over, by the name of its instance."""
    found = of_slurm(environment, "squeue", "--noheader", "-O", "JobID:|,State:|,Name:|")
    rows = [line.split("|") for line in found.splitlines()]
    return {row[2].split("/")[2]: (row[0], row[1]) for row in rows if row[2].startswith("rlboost/")}


def test_jobs_come_and_go_and_change_no_bit(
    slurm: dict[str, str],
    short_and_calm: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    with running(tmp_path / "run", *SETTINGS, environment=slurm) as run:
        with run.at_a_standstill(version=1, servers=False):
            run.wait_until(lambda: len(joined(run)) == JOBS, f"{JOBS} jobs that have joined")
            assert_kept(run, slurm)

        # A partition of higher priority takes two of the eight processors that jobs have.
        with run.at_a_standstill(version=2, servers=False):
            run.wait_until(lambda: len(busy(run)) == JOBS, "work for all of them")
            urgent = of_slurm(
                slurm,
                *("sbatch", "--parsable", "--partition=urgent", "--ntasks=4", "--output=/dev/null"),
                given="#!/bin/sh\nexec sleep 600\n",
            ).strip()
            run.wait_until(lambda: len(run.events("notice")) >= 2, "notice to two jobs")
        noticed = [e["instance"] for e in run.events("notice")]
        assert {e["detail"]["reason"] for e in run.events("notice")} == {"SIGUSR1"}

        # Others wait in their place; then somebody cancels all jobs, in the middle of a step.
        with run.at_a_standstill(version=3, servers=False):
            run.wait_until(
                lambda: {e["instance"] for e in run.events("drained")} >= set(noticed), "goodbyes"
            )
            drained = [e for e in run.events("drained") if e["instance"] in noticed]
            assert all(e["detail"]["tokens_lost"] == 0 for e in drained)
            state = functools.partial(jobs, slurm)
            run.wait_until(lambda: "PENDING" in {s for _, s in state().values()}, "others")
            of_slurm(slurm, "scancel", "--signal=KILL", "--full", urgent)
            of_slurm(slurm, "scancel", urgent)
            run.wait_until(lambda: busy(run), "work for one")
            gone = jobs(slurm)
            of_slurm(slurm, "scancel", *(number for number, _ in gone.values()))
            run.wait_until(lambda: not gone.keys() & jobs(slurm).keys(), "their end")
            run.wait_until(lambda: joined(run) - gone.keys() - set(noticed), "another one")

        # The manager dies; the next one finds the jobs and goes on with them.
        with run.at_a_standstill(version=4, servers=False):
            before = set(jobs(slurm))
            os.kill(run.manager()["pid"], signal.SIGKILL)
            run.wait_until(lambda: len(run.events("manager")) == 2, "another manager")
            assert before & set(jobs(slurm)), "it has ended them all"
        run.finish()
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
    assert not jobs(slurm)


def test_what_a_dead_run_has_left_is_found_and_reaped(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    """Trainer and manager are killed at once, as with a host: nobody is left to end the jobs."""
    settings = (*SETTINGS, "fleet.max_instances=2", "num_steps=6000")  # it is killed long before
    with running(tmp_path / "run", *settings, environment=slurm) as run:
        run.wait_until(lambda: len(jobs(slurm)) == 2, "two jobs")
        run.wait_until(lambda: "ready" in {e["kind"] for e in run.events()}, "a start")
        pid = run.manager()["pid"]
        run.kill()
        os.kill(pid, signal.SIGKILL)
        found = reap(run, slurm, "list", code=1)
        assert found.count("slurm-") == 2, found
        said = reap(run, slurm, "reap", code=0)
        assert "2 ended" in said, said
        wait_until(lambda: not jobs(slurm), "an empty queue")
        assert "nothing" in reap(run, slurm, "list", code=0)


def assert_kept(run: Run, environment: dict[str, str]) -> None:
    """What opens the manager is in nothing that Slurm shows."""
    numbers = [number for number, _ in jobs(environment).values()]
    shown = [of_slurm(environment, "scontrol", "show", "job", number) for number in numbers]
    shown += [
        of_slurm(environment, "scontrol", "write", "batch_script", number, "-")
        for number in numbers
    ]
    assert_secrets_are_kept(run, shown, run.workdir.glob("logs/**/*.*"), tag="rlboost/")
