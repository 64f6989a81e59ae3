"""The manager's choice among pools, carried out: against a linear programme, and with losses."""

import pytest

from experiments.fleet_pools.fleet import Kind, fluid_bound, lent, tokens_per_dollar, world
from rlboost_jax.manager.events import Record
from rlboost_jax.simulator.market.kinds import machine_name
from rlboost_jax.simulator.market.simulated_market import MachineChange
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

KINDS = {
    "fast": Kind(slowness=1.0, price_per_hour=5.0, most=4),
    "cheap": Kind(slowness=2.0, price_per_hour=1.4, most=4),
    "dear": Kind(slowness=3.0, price_per_hour=4.0, most=4),
}
RUN = {
    "policy__window": "model",
    "policy__sizing": "marginal",
    "policy__routing": "auto",
    "trainer__lag": 1,
    "workload__prompts_per_step": 128,
    "workload__sigma": 0.3,
    "num_steps": 10,
}
SETTLED = 5  # steps


def config_of(**changes):
    return make_config(**{**RUN, **changes})


def share(config, made: World, rows) -> float:
    """Share of the tokens per dollar that cannot be exceeded, without the first steps."""
    work = config.workload
    size = work.prompts_per_step * work.group_size
    lengths = [[made.length(step, n) for n in range(size)] for step in range(SETTLED, len(rows))]
    return tokens_per_dollar(config, rows[SETTLED:]) / fluid_bound(config, KINDS, lengths)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_three_speeds_and_prices_come_to_the_fluid_bound(seed):
    config = config_of()
    made = world(config, KINDS, lent(KINDS), seed=seed)
    # What was generated ahead in the first steps was paid for there.
    assert 0.95 <= share(config, made, made.run()) <= 1.01


def test_all_that_there_is_would_be_far_from_it():
    config = config_of(policy__sizing="fixed")
    made = world(config, KINDS, lent(KINDS), seed=1)
    assert share(config, made, made.run()) < 0.8


class Recording(World):
    """Keeps what the manager records, with its time."""

    def _perform(self, action):
        if isinstance(action, Record):
            if not hasattr(self, "notes"):
                self.notes = []
            self.notes.append((self.clock.now, action))
        super()._perform(action)


def test_a_pool_that_kills_at_once_is_left_alone_and_comes_back():
    """For ten minutes each machine of the cheapest pool goes every 20 s and is there again."""
    config, killing = config_of(num_steps=24), 600.0
    changes = list(lent(KINDS))
    for number in range(KINDS["cheap"].most):
        name = machine_name("cheap", number)
        for moment in range(20, int(killing), 20):
            changes.append(MachineChange(float(moment), False, name))
            changes.append(MachineChange(moment + 0.5, True, name))
    changes.sort(key=lambda change: change.seconds)
    made = world(config, KINDS, changes, seed=1, make=Recording)
    made.run()
    orders = [now for now, r in made.notes if r.kind == "ordered" and r.detail["pool"] == "cheap"]
    others = [now for now, r in made.notes if r.kind == "ordered" and r.detail["pool"] != "cheap"]
    early = [now for now in orders if now < killing]
    assert len(early) <= 4 + 16, "30 times as many were there to be had"
    assert [now for now in others if now < killing], "it went to others in the meantime"
    assert [now for now in orders if now > killing], "it came back"
    (*_, last) = (r for _, r in made.notes if r.kind == "pools")
    members = {pool["name"]: pool["members"] for pool in last.detail["pools"]}
    assert members["cheap"] >= 2 and not members["dear"]
