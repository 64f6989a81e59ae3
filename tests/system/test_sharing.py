"""Real servers on devices that are somebody else's too: budgets that change, and kills."""

import os
import signal

import pytest

from tests.system.harness import PATIENT, SHORT, prepared
from tests.system.tenant import Tenant

pytestmark = pytest.mark.system


@pytest.fixture
def private(tmp_path_factory):
    """A folder of this user's alone, with a short name."""
    folder = tmp_path_factory.mktemp("s")
    folder.chmod(0o700)
    return folder


def test_budgets_that_change_all_the_time_change_no_bit(short_and_calm, tmp_path, private):
    names = ("one", "two")
    with prepared(tmp_path / "run", *SHORT, *PATIENT, "fleet.max_instances=1") as run:
        run.hold(version=1).start()
        paths = {name: private / f"{name}.sock" for name in names}
        tenants = []
        with run.at_a_standstill(version=1, servers=False, then=3):
            for name in names:
                run.serve(f"--name={name}", f"--budget_socket={paths[name]}")
            for number, name in enumerate(names):
                run.wait_until(
                    lambda name=name: [e for e in run.events("working") if e["instance"] == name],
                    f"work for {name}",
                )
                tenants.append(Tenant(paths[name], number))
            run.wait_until(lambda: all(len(t.states) > 2 for t in tenants), "orders")
        with run.at_a_standstill(version=3) as still:  # who is killed may hold nothing by then
            for pid in still.at_work.values():
                os.kill(pid, signal.SIGKILL)
            killed = set(still.at_work)
            run.wait_until(
                lambda: killed <= {e["instance"] for e in run.events("lost")}, "their losses"
            )
        run.finish()
    for tenant in tenants:
        tenant.end()
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
    assert not run.events("compiled"), "a size that was never compiled would hold up its tenant"
    resized = [e for e in run.events("resized") if e["instance"] in names]
    assert sum(e["detail"]["count"] for e in resized) > 0, "nobody had to go"
    assert {e["detail"]["frozen"] for e in resized} == {True, False}
    assert all(s.dispatches <= 1 for tenant in tenants for s in tenant.states)
    assert sum(row["rollouts_handed_back"] for row in run.metrics()) > 0
