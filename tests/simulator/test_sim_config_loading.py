"""Mistakes in a simulation's configuration, each reported in a line."""

import json

import pytest

from configs.sim import base
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.simulator.sim_config_loading import sim_config, sim_config_from_dict, to_dict
from tests.simulator.conftest import make_config


def test_all_sizes_are_valid():
    for model in base.MODELS:
        sim_config(base.get_config(model))


def test_it_goes_through_json():
    config = make_config(engine__table=((1.0, 100.0, 0.1),), market__segments=((0.0, 2.0),))
    assert sim_config_from_dict(json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine__slots": 0}, "engine.slots is 0; choose more than 0"),
        ({"instance__price_per_hour": -1.0}, "instance.price_per_hour is -1.0; choose 0 or more"),
        ({"engine__memory_fraction": 1.5}, "engine.memory_fraction is 1.5; choose 1.0 or less"),
        ({"trainer__lag": 9}, "trainer.lag is 9; choose 8 or less"),
        ({"policy__window_eta": 0.0}, "policy.window_eta is 0.0; choose more than 0"),
        ({"market__notice_seconds": 1e6}, "market.notice_seconds is 1000000.0; choose 86400.0"),
        ({"workload__growth_per_step": 0.9}, "workload.growth_per_step is 0.9"),
        ({"chip__flops_per_second": float("nan")}, "chip.flops_per_second is nan"),
        ({"market__kind": "sttic"}, "market.kind 'sttic' does not exist; known: static"),
        ({"systems": ("rlbost",)}, "systems: 'rlbost' does not exist; did you mean 'rlboost'?"),
        ({"systems": ()}, "systems is empty"),
        ({"engine__chips": 16}, "engine.chips is 16, more than the reserved 1 x 4"),
        ({"workload__max_response_tokens": 65_000, "engine__memory_fraction": 0.2}, "has room for"),
        ({"trainer__micro_batch_prompts": 99}, "trainer.micro_batch_prompts is 99; a step has"),
        ({"settling_steps": 4}, "settling_steps is 4 of 4 steps"),
        ({"market__instances": ()}, "market.instances is ()"),
        ({"num_steps": 0, "settling_steps": 0}, "num_steps is 0 and a static market has no end"),
        ({"market__kind": "trace"}, "market.path is ''"),
        ({"market__kind": "hazard"}, "market.segments is empty"),
        ({"market__segments": ((2.0, 1.0),)}, "market.segments has"),
        ({"market__segments": ((0.0, float("nan")),)}, "market.segments has (0.0, nan)"),
        ({"market__instances": (2, -1)}, "market.instances is (2, -1); give fleets of 0 to 100000"),
        ({"market__instances": (10**9,)}, "give fleets of 0 to 100000"),
        ({"reserved__price_per_node_hour": 0.0}, "price_per_node_hour is 0.0; choose more than 0"),
        ({"workload__mean_tokens": -5.0}, "workload.mean_tokens is -5.0; choose more than 0"),
        ({"workload__prompt_tokens": -5}, "workload.prompt_tokens is -5; choose more than 0"),
        ({"engine__table": ((1.0, -1.0, 1.0),)}, "engine.table has (1.0, -1.0, 1.0); give a batch"),
        ({"engine__table": ((1.0, 1.0, 0.0),)}, "seconds of more than 0"),
        (
            {
                "market__kind": "hazard",
                "market__segments": ((0.0, 99.0),),
                "market__hazard__lifetime_hours": 1e-9,
            },
            "market.hazard.lifetime_hours is 1e-09",
        ),
        ({"engine__table": ((1.0, 1.0, 1.0), (2.0, 2.0, 1.0))}, "engine.table is no grid"),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises(ConfigError) as error:
        make_config(**changes)
    assert message in str(error.value)


def test_an_unknown_field_is_reported_with_what_is_like_it():
    values = to_dict(make_config())
    values["engine"]["slotz"] = 3
    with pytest.raises(ConfigError, match=r"config.engine.slotz does not exist; did you mean"):
        sim_config_from_dict(values)
    del values["engine"]["slotz"], values["chip"]
    with pytest.raises(ConfigError, match=r"config.chip is missing; configs/sim/base\.py"):
        sim_config_from_dict(values)
