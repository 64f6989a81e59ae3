"""A lag keeps the promise: what becomes of servers changes the bill, not the model."""

import pytest

from tests.system.harness import PATIENT, SHORT, SPREAD, complete, prepared

pytestmark = pytest.mark.system


@pytest.mark.soak  # a lag of 1 is that of test_judged.py
@pytest.mark.parametrize("lag", [1, 2])
def test_killed_and_joining_servers_change_no_bit_of_a_run_with_a_lag(tmp_path, lag):
    settings = (*SHORT, f"algorithm.lag={lag}", f"num_steps={3 + lag}")  # versions 0, 1 and 2
    alone = complete(tmp_path / "alone", *settings, "fleet.max_instances=0")
    with prepared(tmp_path / "chaos", *settings, *SPREAD, *PATIENT) as chaos:
        chaos.hold(version=1).start()
        chaos.kill_servers_at_work(1, 2)
        chaos.finish()
    assert chaos.digests() == alone.digests()
    assert [row["version"] for row in alone.metrics()] == [max(0, b - lag) for b in range(3 + lag)]
    assert all(row["max_logprob_gap"] <= 1e-5 for row in alone.metrics())
    chaos.assert_accounts_hold()


@pytest.mark.soak
def test_a_lying_server_is_caught_at_a_lag_of_two(tmp_path):
    """And honest ones are not, although the policy has moved on since they sampled."""
    settings = (*SHORT, "algorithm.lag=2", "num_steps=5")
    alone = complete(tmp_path / "alone", *settings, "fleet.max_instances=0")
    with prepared(tmp_path / "run", *settings, "fleet.max_instances=1", *PATIENT) as run:
        run.hold(version=1).start()
        with run.at_a_standstill(version=1):
            liar = run.serve("--name=liar", program="tests.system.liar shift")
            run.wait_until(
                lambda: any(e["instance"] == "liar" for e in run.events("working")),
                "work for the liar",
            )
        liar.end()
        run.finish()
    (caught,) = run.events("quarantined")
    assert caught["instance"] == "liar"
    assert run.digests() == alone.digests()
    run.assert_accounts_hold()
