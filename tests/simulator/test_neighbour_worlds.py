"""Two runs on the same machines, in virtual time: what is paid for, and what is done."""

import pytest

from rlboost_jax.simulator.market.kinds import machine_name
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.neighbour_worlds import neighbours
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import Make, make_config

SECONDS = 1e7


@pytest.fixture
def config(make: Make):
    return make(policy__window="model")


def alone(config, instances: int, seed: int):
    return World(config, static(instances).changes, seed=seed, seconds=SECONDS).run()


def test_each_run_does_all_its_steps_and_both_together_pay_for_the_whole_fleet(config) -> None:
    rows, machines = neighbours([config] * 2, static(4).changes, seeds=[0, 1], seconds=SECONDS)
    assert [len(own) for own in rows] == [config.num_steps] * 2
    assert machines.handovers > 0
    bills = [sum(machines.bill(run).values()) for run in (0, 1)]
    assert sum(bills) == pytest.approx(4 * machines.now)
    for run, own in enumerate(rows):
        reference = alone(config, 2, seed=run)
        for row, other in zip(own, reference, strict=True):
            assert row["response_tokens"] == other["response_tokens"], "of the same work"
        paid = sum(row["billed_instance_seconds"] for row in own)
        assert 0 < paid <= bills[run] + 1e-6


def test_what_one_does_not_need_the_other_has(config) -> None:
    """A run with a hundredth of the work beside it is not noticed, and pays for little."""
    few = {"workload__prompts_per_step": 4, "workload__mean_tokens": 50.0}
    little = make_config(policy__window="model", trainer__apply_seconds=20.0, **few)
    rows, machines = neighbours([config, little], static(2).changes, seeds=[0, 1], seconds=SECONDS)
    reference = alone(config, 2, seed=0)
    settled = slice(config.settling_steps, None)
    own, usual = (
        sum(row["step_seconds"] for row in each[settled]) for each in (rows[0], reference)
    )
    assert own < 1.1 * usual
    assert sum(machines.bill(1).values()) < sum(machines.bill(0).values())


def test_machines_that_go_and_come_are_shared_as_the_others(config) -> None:
    names = [machine_name("", number) for number in range(3)]
    changes = [MachineChange(0.0, True, name) for name in names]
    changes += [MachineChange(20.0, False, names[0]), MachineChange(60.0, True, names[0])]
    changes += [MachineChange(70.0, False, names[1])]
    rows, machines = neighbours([config] * 2, changes, seeds=[0, 1], seconds=SECONDS)
    assert [len(own) for own in rows] == [config.num_steps] * 2
    end = machines.now
    whole = 20.0 + (end - 60.0) + 70.0 + end
    assert sum(sum(machines.bill(run).values()) for run in (0, 1)) == pytest.approx(whole)
    assert all(sum(row["instances_lost"] for row in own) == 2 for own in rows)


def test_a_single_run_has_its_fleet_as_if_it_was_alone(config) -> None:
    (rows,), _ = neighbours([config], static(2).changes, seeds=[0], seconds=SECONDS)
    for row, other in zip(rows, alone(config, 2, seed=0), strict=True):
        assert row["step_seconds"] == pytest.approx(other["step_seconds"])
        assert row["billed_instance_seconds"] == pytest.approx(other["billed_instance_seconds"])
