"""A simulation frees its world, and looks at nobody else's objects to do so."""

import gc
import types
import weakref

import pytest

from rlboost_jax.simulator import garbage
from rlboost_jax.simulator.plan import mix_run
from rlboost_jax.simulator.plan.mix_run import horizon_of, run_mix
from rlboost_jax.simulator.plan.mixes import Mix
from rlboost_jax.simulator.plan.prices import InstanceType, PriceList
from rlboost_jax.simulator.plan.purchase import purchase_of
from rlboost_jax.simulator.run import simulate
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

HORIZON = horizon_of(run_steps=2, steps=2, settling=0, seeds=(0,))


@pytest.mark.parametrize("way", ["mix", "files"])
def test_worlds_are_freed_by_looking_at_the_youngest_objects_only(way, monkeypatch, tmp_path):
    """The process around may hold millions: to walk them took a second of each mix."""
    made, looked = [], []

    class Kept(World):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            made.append(weakref.ref(self))

    def collect(generation=2):
        looked.append(generation)
        gc.collect(generation)

    own = types.SimpleNamespace(
        isenabled=gc.isenabled, enable=gc.enable, disable=gc.disable, collect=collect
    )
    monkeypatch.setattr(garbage, "gc", own)
    config = make_config(num_steps=2, systems=("rlboost",), market__instances=(1,))
    if way == "mix":
        monkeypatch.setattr(mix_run, "World", Kept)
        prices = PriceList(instances=(InstanceType(name="one", price_per_hour=1.0, speed=1.0),))
        run_mix(purchase_of(config, prices, measured=False), Mix((1,)), HORIZON, seed=0)
    else:
        simulate(config, tmp_path, world=Kept)
    assert [world() for world in made] == [None]
    assert set(looked) == {0}
    assert gc.isenabled()
