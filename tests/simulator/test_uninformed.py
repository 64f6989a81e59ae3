"""A manager that predicts other fleets only where they matter decides as one that always does."""

import dataclasses
import functools

import pytest

from experiments.fleet_pools.fleet import Kind, lent, machines_of, world
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.simulator.market.kinds import machine_name
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.world import World, settings
from tests.simulator.conftest import make_config

LOSSES = (MachineChange(20.0, False, "machine1"), MachineChange(45.0, True, "machine4"))
KINDS = {
    "slow": Kind(slowness=3.0, price_per_hour=2.0, most=2),
    "fast": Kind(slowness=1.0, price_per_hour=4.0, most=2),
}


def informed(settings, now):
    return Manager(dataclasses.replace(settings, informs=True), now)


def made(config, *, pools, **more):
    if not pools:
        return World(config, (*static(3).changes, *LOSSES), seed=1, seconds=1e6, **more)
    names = [machine_name(kind, number) for kind in KINDS for number in range(2)]
    lost = [MachineChange(130.0, False, name) for name in names]
    back = [MachineChange(150.0, True, name) for name in names]
    return world(
        config, KINDS, [*lent(KINDS), *lost, *back], seed=1, make=functools.partial(World, **more)
    )


@pytest.mark.parametrize(
    ("pools", "changes"),
    [
        (False, {"policy__window": "model"}),
        (False, {"policy__window": "model", "policy__longest_first": True, "trainer__lag": 1}),
        (True, {"policy__max_dollars_per_hour": 9.0}),
        (True, {"policy__window": "model", "policy__merge_tail": True}),
    ],
)
def test_it_decides_the_same(pools, changes):
    config = make_config(num_steps=6, **changes)
    usual, silent = made(config, pools=pools, manager=informed), made(config, pools=pools)
    rows = usual.run()
    assert silent.run() == rows and silent.clock.now == usual.clock.now
    assert usual.predictions and not silent.predictions
    measured, own = ([p.speed for p in w.manager.owners.pools] for w in (usual, silent))
    assert measured == own and (all(own) or not pools)


@pytest.mark.parametrize(
    ("changes", "pools"),
    [
        ({"policy__sizing": "marginal"}, False),  # as many are wanted as are predicted to pay
        # What weights cost a pool goes by the predicted step.
        ({"instance__egress_dollars_per_gb": 0.1}, True),
    ],
)
def test_where_sizes_matter_they_are_predicted(changes, pools):
    config = make_config(**changes)
    machines = machines_of(config, KINDS) if pools else None
    assert settings(config, machines).predicts_sizes
