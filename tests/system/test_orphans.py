"""A run that loses its trainer, and one that is interrupted, go on with the same bits."""

import signal
import time

import pytest

from rlboost_jax.platform import exits
from tests.system.harness import PATIENT, SHORT, Run, prepared

pytestmark = pytest.mark.system


def events_since(run: Run, kind: str, since: float) -> list[dict]:
    return [event for event in run.events(kind) if event["time"] >= since]


def test_orphans_leave_by_themselves_and_an_interrupted_run_goes_on_with_the_same_bits(
    short_and_calm, tmp_path
):
    soon = (*SHORT, "evaluation.every_steps=2", *PATIENT, "fleet.orphan_seconds=5")
    with prepared(tmp_path / "run", *soon) as run:
        run.hold(version=1).start()
        with run.at_a_standstill(version=1, then=2):
            run.kill()
            run.assert_nothing_is_left()
        assert not (run.workdir / "manager.json").exists()
        since = time.time()
        run.start()
        with run.at_a_standstill(version=2):
            assert events_since(run, "resumed", since)
            (recovered,) = events_since(run, "recovered", since)
            assert recovered["detail"]["tokens"] > 0, "they left what they had to those that come"
            run.process.send_signal(signal.SIGTERM)
            run.end()
        assert run.process.returncode == exits.by_signal(signal.SIGTERM)
        run.assert_nothing_is_left()
        assert run.end().splitlines()[-1] == "interrupted; the same command goes on"
        since = time.time()
        run.start().finish()
        (recovered,) = events_since(run, "recovered", since)
        assert recovered["detail"]["tokens"] > 0, "the step under way was not begun anew"
        assert [row["step"] for row in run.metrics()] == list(range(6))
        run.assert_nothing_is_left()
        run.assert_accounts_hold()
    assert run.digests() == short_and_calm.digests()
