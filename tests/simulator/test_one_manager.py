"""Production and simulation decide with the same objects: no second copy of a policy.

What the simulated manager was sent is sent to production's driver, event by event at the same
times. Both must want the same things done.
"""

import asyncio
import dataclasses

import pytest

import rlboost_jax.manager.__main__ as production
from configs import tiny
from rlboost_jax.manager.events import Request
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.manager_driver import Driver
from rlboost_jax.manager.settings import Settings
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.simulator import world as simulation
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from tests.providers.fake import Cloud, FakeProvider
from tests.simulator.conftest import make_config

FLEET = (
    *static(3).changes,
    MachineChange(9.0, False, "machine1"),
    MachineChange(14.0, True, "late"),
    MachineChange(31.0, False, "machine2"),
    MachineChange(44.0, True, "later"),
)


def run_simulation(config):
    """(event, time, actions) of everything that the manager was sent."""
    exchanged = []

    class Watched(Manager):
        def handle(self, event, now):
            actions = super().handle(event, now)
            exchanged.append((event, now, list(actions)))
            return actions

    simulation.World(config, FLEET, seed=0, seconds=1e6, manager=Watched).run()
    return exchanged


def replay(config, exchanged):
    """What production's driver is asked to do about the same events."""

    async def drive():
        wanted = []
        driver = Driver(
            production.Manager(simulation.settings(config), 0.0),
            record=lambda time, record: None,
            watch=lambda event, actions, began, ended: wanted.append((event, list(actions))),
        )
        await driver.employ(Silent(Cloud()))
        for event, now, _ in exchanged:
            driver.now = lambda now=now: now
            driver._ran_at, driver._due = now, float("inf")  # its own clock stood still
            driver.apply(event)
        return list(wanted)  # before its timers come to anything

    return asyncio.run(drive())


class Silent(FakeProvider):
    """Answers nothing: the simulation's events say what came of it."""

    async def request(self, name, nonce, pool):
        await asyncio.Event().wait()

    async def terminate(self, name, grace_seconds):
        pass


@pytest.mark.parametrize("notice", [0.0, 20.0])
def test_productions_driver_decides_what_the_simulation_decided(notice):
    config = make_config(num_steps=4, market__notice_seconds=notice)
    exchanged = run_simulation(config)
    assert len(exchanged) > 300
    wanted = replay(config, exchanged)
    assert len(wanted) == len(exchanged)
    for (event, now, actions), (same, again) in zip(exchanged, wanted, strict=True):
        assert same == event and again == actions, f"at {now:.3f} s, {type(event).__name__}"
    kinds = {type(action).__name__ for _, _, actions in exchanged for action in actions}
    assert {"Send", "Request", "Terminate", "Record", "Append"} <= kinds
    assert sum(isinstance(a, Request) for _, _, actions in exchanged for a in actions) == 5


def test_both_make_the_same_class_with_the_same_parts():
    world = simulation.World(make_config(), (), seed=0, seconds=1.0)
    run = run_config_from_dict(tiny.get_config().to_dict())
    real = production.Manager(Settings.of(run, "run"), 0.0)
    assert type(world.manager) is type(real) is Manager
    for name, part in vars(real).items():
        assert type(vars(world.manager)[name]) is type(part), name
        for inner, value in vars(part).items() if hasattr(part, "__dict__") else ():
            own = getattr(vars(world.manager)[name], inner)
            if type(value).__module__.startswith("rlboost_jax"):
                assert type(own) is type(value), f"{name}.{inner}"


def test_a_runs_settings_reach_the_simulated_manager():
    """Every field of the manager's section that decides anything."""
    run = run_config_from_dict(tiny.get_config().to_dict())
    manager = run.manager
    config = make_config(
        policy__max_pending=manager.max_pending,
        policy__balance=manager.balance,
        policy__migration=manager.migration,
        policy__seeding=manager.seeding,
        policy__window_initial_seconds=manager.window_initial_seconds,
        policy__window_eta=manager.window_eta,
        policy__window_memory=manager.window_memory,
    )
    timers = {"host", "port", "lease_seconds", "longest_lease_seconds", "renew_seconds"}
    timers |= {
        "progress_seconds",
        "drain_seconds",
    }  # nothing simulated is silent, and drains take as long as they say
    own = simulation.settings(config).manager
    for field in dataclasses.fields(manager):
        if field.name not in timers:
            assert getattr(own, field.name) == getattr(manager, field.name), field.name
