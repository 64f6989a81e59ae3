"""The price up to which preemptible instances pay: by algebra, by the simulator, and in words."""

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import base
from experiments.simulated import outcome
from experiments.spot_discount import presets, prices
from rlboost_jax.configs.sim.h100_speedups import SPEEDUPS
from rlboost_jax.settings.break_even import (
    break_even_text,
    device_share,
    discount,
    speedups_of,
    worth,
)
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.dry_run import plan_text
from rlboost_jax.settings.pool_config import PoolConfig
from rlboost_jax.settings.run_config import RunConfig
from tests.settings.test_configs import CHECKPOINTS
from tests.simulator.conftest import make_config


@pytest.fixture(scope="module")
def fourteen(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return preset("qwen3_14b_openr1", tmp_path_factory.mktemp("14b"))


def preset(name: str, folder: Path) -> RunConfig:
    (folder / "config.json").write_text(json.dumps(CHECKPOINTS[name][0]))
    config = importlib.import_module(f"configs.{name}").get_config()
    config.model.source = str(folder)
    return run_config(config)


def with_fleet(config: RunConfig, **changes: Any) -> str:
    fleet = dataclasses.replace(config.fleet, **changes)
    return break_even_text(dataclasses.replace(config, fleet=fleet))


def test_at_that_price_tokens_per_dollar_are_those_of_the_reserved_devices_alone() -> None:
    """r · T tokens for R + k · p dollars an hour, in float64, against T tokens for R."""
    speedup, count, share, reserved = np.meshgrid(
        [1.04, 1.5, 3.9], [1, 4, 16], [1 / 16, 0.25, 1.0], [2.5, 83.79]
    )
    price = worth(speedup, count) * reserved
    np.testing.assert_allclose(speedup / (reserved + count * price), 1 / reserved, rtol=1e-12)
    np.testing.assert_allclose(
        price, (1 - discount(speedup, count, share)) * share * reserved, rtol=1e-12
    )


def test_it_is_the_simulators_own_discount() -> None:
    """Which adds up what each instance was billed for, step by step."""
    config = make_config()
    alone, helped = (outcome("rlboost", config, count, seed=0) for count in (0, 2))
    found = helped.against(alone)
    share = config.engine.chips / (config.reserved.nodes * config.reserved.chips_per_node)
    speedup = found["throughput_ratio"]
    assert found["break_even_discount"] and speedup
    assert discount(speedup, 2, share) == pytest.approx(found["break_even_discount"], abs=0.01)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_plan_of_a_preset_says_from_which_discount_on_its_fleet_pays(
    name: str, tmp_path: Path
) -> None:
    run = preset(name, tmp_path)
    speedups, count = SPEEDUPS[name]["speedups"], run.fleet.max_instances
    assert speedups_of(run) == speedups and len(speedups) == count
    own = {key: value for key, value in SPEEDUPS[name].items() if key != "speedups"}
    assert {**presets.run_of(name), "mesh": own["mesh"]} == own
    (line,) = (line for line in plan_text(run).splitlines() if line.startswith("break-even  "))
    share = device_share(run) * count
    assert f" for each, {1 - (speedups[-1] - 1) / share:.0%} off the reserved price; " in line
    reserved, price = run.fleet.reserved_price_per_hour, run.fleet.price_per_hour
    pays = speedups[-1] / (reserved + count * price) >= 1 / reserved
    assert line.endswith(f"; ${price:.2f} {'pays' if pays else 'does not pay'}")


def test_speedups_are_what_the_simulator_says() -> None:
    """One seed of the preset that is simulated soonest is simulated.

    `python -m experiments.spot_discount.presets` makes all of them.
    """
    (found,) = presets.measure("qwen25_05b_gsm8k", seeds=(0,), instances=(1,))
    assert found == pytest.approx(SPEEDUPS["qwen25_05b_gsm8k"]["speedups"][0], rel=0.02)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "a fleet of 6 that stays makes 1.80 times the tokens of the reserved devices alone"),
        ({}, "pays up to $11.23 an hour for each, 46% off the reserved price; $5.32 pays"),
        ({"price_per_hour": 15.0}, "; $15.00 does not pay"),
        ({"max_instances": 1}, "a fleet of 1 that stays makes 1.18 times"),
        ({"max_instances": 7}, "not known for this run with 7 instances (simulated up to 6): ask"),
        ({"reserved_price_per_hour": 0.0}, "and pays from 46% off the reserved price on"),
        ({"pools": (PoolConfig(name="a"),)}, "not known for pools: `rlboost plan`"),
    ],
)
def test_a_fleet_in_words(fourteen: RunConfig, changes: dict[str, Any], says: str) -> None:
    assert says in with_fleet(fourteen, **changes)


@pytest.mark.parametrize(
    ("speedup", "says"),
    [
        (1.0, "and pays at no price"),
        (
            2.6,
            "$22.34 an hour for each, more than reserved devices cost; $5.32 pays",
        ),
    ],
)
def test_a_fleet_that_never_pays_and_one_that_always_does(
    fourteen: RunConfig, speedup: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six of two GPUs, beside eight: at the reserved price they pay from 2.5 times the speed on."""
    figures = {**SPEEDUPS["qwen3_14b_openr1"], "speedups": (1.0,) * 5 + (speedup,)}
    monkeypatch.setitem(SPEEDUPS, "qwen3_14b_openr1", figures)
    assert break_even_text(fourteen).endswith(says)


def test_without_instances_there_is_no_line(fourteen: RunConfig) -> None:
    assert not with_fleet(fourteen, max_instances=0)


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("sampling", {"max_response_tokens": 2048}),
        ("algorithm", {"group_size": 16}),
        ("algorithm", {"lag": 1}),
        ("engine", {"slots": 64}),
        ("learner", {"mesh": (8, 1, 1)}),
        ("learner", {"prompts_per_step": 64}),
    ],
)
def test_a_run_of_another_speed_has_no_figure(
    fourteen: RunConfig, section: str, changes: dict[str, Any]
) -> None:
    other = dataclasses.replace(getattr(fourteen, section), **changes)
    text = break_even_text(dataclasses.replace(fourteen, **{section: other}))
    assert text.startswith("not known for this run with 6 instances: ask `rlboost plan`")


def test_a_tiny_run_has_no_figure() -> None:
    assert break_even_text(run_config(base.get_config())).startswith("not known for this run")


def test_the_table_of_sellers_is_that_of_the_simulations() -> None:
    """Closed form against the curve that `experiments/spot_discount` drew from bills."""
    found = prices.results()
    for count, row in found["instances"].items():
        for off, expected in zip(found["discounts"], row["cost_efficiency"], strict=True):
            at = prices.tokens_per_dollar(found, int(count), off)
            assert at == pytest.approx(expected, rel=1e-3)
    assert prices.table(prices.SELLERS)[1].split()[-1] == "1.04"
