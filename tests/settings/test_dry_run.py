import dataclasses
from typing import Any

import pytest

from configs import base
from rlboost_jax.settings import dry_run
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.pool_config import PoolConfig
from rlboost_jax.settings.run_config import RunConfig


@pytest.fixture
def config() -> RunConfig:
    return run_config(base.get_config())


def test_the_text_names_processes_memory_fleet_and_cost(config: RunConfig) -> None:
    assert "none: servers run on this host" in dry_run.plan_text(config), "a laptop has no bill"
    fleet = dataclasses.replace(config.fleet, bill_local=True)
    text = dry_run.plan_text(dataclasses.replace(config, fleet=fleet), workdir="runs/x")
    for part in (
        "runs/x",
        "1 trainer, 1 manager, 0 to 2 rollout servers",
        "324,352 parameters",
        "up to 832 pages of 16",
        "14.2 MiB (weights 1.2 MiB + kv pool 13.0 MiB)",
        "at most $15.79 an hour",
        "nothing is taken away",
    ):
        assert part in text


def test_a_number_of_pages_is_taken_as_it_is(config: RunConfig) -> None:
    engine = dataclasses.replace(config.engine, num_pages=64)
    text = dry_run.plan_text(dataclasses.replace(config, engine=engine))
    assert " tokens, 64 pages of 16" in text and "kv pool 1.0 MiB" in text


def test_a_lag_is_said(config: RunConfig) -> None:
    assert "sampled" not in dry_run.plan_text(config)
    algorithm = dataclasses.replace(config.algorithm, lag=2)
    text = dry_run.plan_text(dataclasses.replace(config, algorithm=algorithm))
    assert "; sampled 2 versions before it is trained on, 2 begun ahead" in text
    assert "lag 2 (0)" in text and "older version" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"max_dollars_per_hour": 2.0},
        {"max_dollars_per_hour": 1.5, "price_command": "cat prices"},
        {"max_dollars_per_hour": 1.5, "max_instances": 0},
        {"max_dollars_per_hour": 1.5, "provider": "none"},
    ],
)
def test_a_budget_that_one_may_fit_in_is_not_warned_of(
    config: RunConfig, changes: dict[str, Any]
) -> None:
    fleet = dataclasses.replace(config.fleet, price_per_hour=2.0, **changes)
    text = dry_run.plan_text(dataclasses.replace(config, fleet=fleet))
    assert "none is started" not in text


def test_whom_others_reach_is_not_warned(config: RunConfig) -> None:
    manager = dataclasses.replace(config.manager, host="0.0.0.0")
    fleet = dataclasses.replace(config.fleet, provider="slurm")
    text = dry_run.plan_text(dataclasses.replace(config, fleet=fleet, manager=manager))
    assert "cannot reach" not in text and "provider slurm, at most" in text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"provider": "none"}, "servers join by hand"),
        ({"trace": "synthetic"}, "trace synthetic at 60x (mean life 1200 s"),
        ({"trace": "spot.csv"}, "trace spot.csv at 60x"),
        ({"provider": "slurm"}, "which servers of other hosts cannot reach: set manager.host"),
        ({"price_per_hour": 2.0, "max_instances": 9, "max_dollars_per_hour": 8.0}, "most $18.47"),
        ({"max_dollars": 50.0}, "; preemptible instances go once the run has cost $50.00"),
        (
            {"price_per_hour": 2.0, "max_dollars_per_hour": 1.5},
            "; none is started: fleet.max_dollars_per_hour is $1.50, and one costs $2.00",
        ),
        (
            {"pools": (PoolConfig(name="a", price_per_hour=3.0),), "max_dollars_per_hour": 1.5},
            "; none is started: fleet.max_dollars_per_hour is $1.50, and one costs $3.00",
        ),
    ],
)
def test_the_fleet_in_words(config: RunConfig, changes: dict[str, Any], says: str) -> None:
    fleet = dataclasses.replace(config.fleet, **changes)
    assert says in dry_run.plan_text(dataclasses.replace(config, fleet=fleet))


@pytest.mark.parametrize(
    ("changes", "billed"),
    [
        ({}, False),
        ({"bill_local": True}, True),
        ({"provider": "none"}, True),
        ({"max_dollars": 5.0}, True),
        ({"max_dollars_per_hour": 5.0}, True),
        ({"sizing": "marginal"}, True),
        ({"pools": (PoolConfig(name="a"),)}, True),
    ],
)
def test_a_fleet_on_this_host_has_a_bill_only_where_one_is_asked_for(
    config: RunConfig, changes: dict[str, Any], billed: bool
) -> None:
    fleet = dataclasses.replace(config.fleet, **changes)
    prices = fleet.as_billed().price_per_hour, fleet.as_billed().reserved_price_per_hour
    assert fleet.billed == billed and prices == ((2.66, 10.47) if billed else (0.0, 0.0))
