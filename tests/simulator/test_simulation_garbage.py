"""A simulation frees its world, and looks at nobody else's objects to do so."""

import contextlib
import gc
import weakref

import pytest

from rlboost_jax.simulator.plan.mix_run import horizon_of, run_mix
from rlboost_jax.simulator.plan.mixes import Mix
from rlboost_jax.simulator.plan.price_list import InstanceType, PriceList
from rlboost_jax.simulator.plan.purchase import purchase_of
from rlboost_jax.simulator.simulation_run import simulate
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

HORIZON = horizon_of(run_steps=2, steps=2, settling=0, seeds=(0,))


@contextlib.contextmanager
def collections():
    """Generations of all collections, of which each is asked for: none comes by itself."""
    found, thresholds = [], gc.get_threshold()

    def note(phase, info):
        if phase == "start":
            found.append(info["generation"])

    gc.set_threshold(0)
    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize("way", ["mix", "files"])
def test_worlds_are_freed_by_looking_at_the_youngest_objects_only(way, tmp_path):
    """The process around may hold millions: to walk them took a second of each mix."""
    made = []

    class Kept(World):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            made.append(weakref.ref(self))

    config = make_config(num_steps=2, systems=("rlboost",), market__instances=(1,))
    prices = PriceList(instances=(InstanceType(name="one", price_per_hour=1.0, speed=1.0),))
    purchase = purchase_of(config, prices, measured=False)
    with collections() as looked:
        if way == "mix":
            run_mix(purchase, Mix((1,)), HORIZON, seed=0, world=Kept)
        else:
            simulate(config, tmp_path, world=Kept)
    assert [world() for world in made] == [None]
    assert set(looked) == {0}
    assert gc.isenabled()
