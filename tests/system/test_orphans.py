"""A run that loses its trainer, and one that is interrupted, go on with the same bits."""

import signal
import time

import pytest

from rlboost_jax.supervision import exits
from tests.system.harness import PATIENT, SHORT, Run, running, wait_until

pytestmark = pytest.mark.system


def events_since(run: Run, kind: str, since: float) -> list[dict]:
    return [event for event in run.events(kind) if event["time"] >= since]


def test_orphans_leave_by_themselves_and_an_interrupted_run_goes_on_with_the_same_bits(
    short_and_calm, tmp_path
):
    soon = (*SHORT, "evaluation.every_steps=2", *PATIENT, "fleet.orphan_seconds=5")
    with running(tmp_path / "run", *soon) as run:
        with run.at_a_standstill(version=1):
            run.kill()
            wait_until(lambda: not run.processes(), "end of the orphans")
        assert not (run.workdir / "manager.json").exists()
        since = time.time()
        run.start()
        with run.at_a_standstill(version=2):
            assert events_since(run, "resumed", since)
            (recovered,) = events_since(run, "recovered", since)
            assert recovered["detail"]["tokens"] > 0, "they left what they had to those that come"
            run.process.send_signal(signal.SIGTERM)
            output = run.end()
        assert run.process.returncode == exits.by_signal(signal.SIGTERM)
        assert output.splitlines()[-1] == "interrupted; the same command goes on"
        assert not run.processes()
        since = time.time()
        run.start().finish()
        (recovered,) = events_since(run, "recovered", since)
        assert recovered["detail"]["tokens"] > 0, "the step under way was not begun anew"
        assert [row["step"] for row in run.metrics()] == list(range(6))
        assert not run.processes()
        run.assert_accounts_hold()
    assert run.digests() == short_and_calm.digests()
