"""Real servers on devices that are somebody else's too: budgets that change, and kills."""

import os
import random
import signal
import socket
import threading
import time

import pytest

from rlboost_jax.rollout.sharing.tenant_protocol import (
    BudgetOrder,
    State,
    decode_answer,
    encode_line,
)
from tests.system.harness import PATIENT, SHORT, prepared

pytestmark = pytest.mark.system

PAUSE_SECONDS = 0.1  # between two orders: in a step sizes only go down


class Tenant:
    """Orders another budget and another, for as long as it can."""

    def __init__(self, path, seed):
        self.states: list[State] = []
        self.problem = None
        self._path, self._random = path, random.Random(seed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(self._path))
                with line.makefile("rb") as answers:
                    whole = self._ask(line, answers, BudgetOrder())
                    while True:
                        slots, pool = whole.most_slots, whole.most_pool_bytes
                        slots = self._random.choice((slots, slots, slots // 2, 1, 0))
                        pool = self._random.choice((pool, pool, pool // 2, pool // 3))
                        order = BudgetOrder(slots=slots, pool_bytes=pool)
                        self.states.append(self._ask(line, answers, order))
                        time.sleep(PAUSE_SECONDS)
        except (OSError, EOFError):
            pass  # the server has left: the run is over
        except Exception as error:
            self.problem = error

    def _ask(self, line, answers, order):
        line.sendall(encode_line(order) + b"\n")
        if not (answer := answers.readline()):
            raise EOFError
        state = decode_answer(answer)
        assert isinstance(state, State), state
        return state

    def end(self):
        self._thread.join()
        assert self.problem is None


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
