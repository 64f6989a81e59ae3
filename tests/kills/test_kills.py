"""Plans of kills, and a few of them carried out: `python -m tests.kills` does many."""

import random

import pytest

from tests.kills.__main__ import RELAYED, main, moments, planned

RECORD = """\
manager: begin 1
manager: import rlboost_jax.settings 1
reward worker: begin 1
manager: socket.bind 1
manager: start relay 1
manager: begin 1
manager: socket.bind 2
"""


def test_moments_stand_in_the_order_in_which_a_process_comes_to_them() -> None:
    found = moments(RECORD)
    assert found["reward worker"] == ["begin 1"]
    assert found["manager"] == [
        "begin 1",
        "import rlboost_jax.settings 1",
        "socket.bind 1",
        "start relay 1",
        "socket.bind 2",
    ]


def test_plans_are_of_every_process_and_of_relays_that_exist() -> None:
    known = {"small": moments(RECORD)}
    rng = random.Random(1)
    plans = [planned(rng, known, 0.3) for _ in range(200)]
    assert {plan.who for plan in plans} == {"manager", "reward worker"}
    relays = {(plan.who, plan.moment) for plan in plans if plan.relay}
    assert relays == {("manager", "socket.bind 2")}, "there was none before"
    assert "manager" in RELAYED and "reward worker" not in RELAYED
    assert all(plan.moment in known["small"][plan.who] for plan in plans)


@pytest.mark.soak
def test_a_few_runs_end_well_or_in_a_line() -> None:
    assert main(["--runs=6", "--seed=1"]) == 0
