"""Policies beyond the paper's, carried out: against every fixed window, every fleet, the bound."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from rlboost_jax.simulator import world as simulated_world
from rlboost_jax.simulator.colocated import colocated
from rlboost_jax.simulator.economics import dollars
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

MODEL = {"policy__window": "model", "workload__prompts_per_step": 48, "num_steps": 6}


def steps(instances=0, *, changes=None, seed=1, **more):
    config = make_config(**{**MODEL, **more})
    changes = static(instances).changes if changes is None else changes
    world = World(config, changes, seed=seed, seconds=1e6)
    return world, world.run()


def seconds(rows, first=1):
    return np.array([row["step_seconds"] for row in rows])[first:]


@pytest.mark.soak
@pytest.mark.parametrize("instances", [1, 3])
def test_no_fixed_window_is_much_better(instances):
    """The step is small and depends on a few long responses; see `experiments/policies`."""
    _, rows = steps(instances)
    chosen = np.mean([row["seeding_window_seconds"] for row in rows[1:]])
    fixed = [
        steps(
            instances,
            policy__window="paper",
            policy__window_eta=1e12,
            policy__window_memory=False,
            policy__window_initial_seconds=float(chosen * share),
        )[1]
        for share in (0.8, 0.95, 1.1)
    ]
    best = min(seconds(each, 2).mean() for each in fixed)
    assert seconds(rows, 2).mean() <= 1.05 * best


def test_the_first_step_is_never_slower_than_without_instances():
    """A model that knows nothing lets the reserved engines go on: however few the instances."""
    _, rows = steps(1, num_steps=1, settling_steps=0)
    alone = colocated(make_config(**MODEL), seed=1, seconds=1e9)
    assert rows[0]["step_seconds"] <= 1.01 * alone[0]["step_seconds"]


def test_the_window_follows_a_loss_in_the_step_in_which_it_is_known():
    """The next step is like one of a run that never had more."""
    _, calm = steps(3, num_steps=3)
    begun = calm[2]["begun_at"]
    changes = static(3).changes + tuple(
        MachineChange(begun + 0.5, False, machine) for machine in ("machine1", "machine2")
    )
    _, rows = steps(changes=changes, num_steps=4)
    assert rows[1]["seeding_window_seconds"] == calm[1]["seeding_window_seconds"]
    assert rows[2]["seeding_window_seconds"] > 1.2 * calm[2]["seeding_window_seconds"]
    _, one = steps(1, num_steps=4)
    assert rows[3]["step_seconds"] == pytest.approx(one[3]["step_seconds"], rel=0.08)


@pytest.mark.soak
def test_what_it_predicts_of_other_fleets_comes_true():
    world, _ = steps(3, policy__sizing="marginal", policy__max_instances=6)
    sizes = {row[0]: row[1] for row in world.predictions[-1]["sizes"]}
    assert len(sizes) >= 3
    for instances, step_seconds in sizes.items():
        if instances in (1, 4):
            _, other = steps(instances)
            assert step_seconds == pytest.approx(seconds(other, 2).mean(), rel=0.1)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_steps_that_overlap_are_predicted_to(lag):
    """All three are wanted where an hour is worth much."""
    all_three = {"policy__max_instances": 3, "policy__worth_per_hour": 1e4}
    world, rows = steps(3, policy__sizing="marginal", trainer__lag=lag, num_steps=8, **all_three)
    known = [dict(size[:2] for size in each["sizes"]) for each in world.predictions[2:-1]]
    predicted = np.mean([sizes[3] for sizes in known])
    assert 0.75 < predicted / seconds(rows, 3).mean() < 1.1


def test_the_more_an_hour_is_worth_the_larger_the_fleet():
    wanted = [
        steps(6, policy__sizing="marginal", policy__worth_per_hour=worth, num_steps=3)[1][-1]
        for worth in (0.0, 1000.0)
    ]
    assert wanted[0]["instance_cap"] < wanted[1]["instance_cap"]


def test_weights_that_cost_money_make_fleets_smaller():
    """30 GB for each instance and step at a dollar per GB are far more than its hour."""
    found = [
        steps(6, policy__sizing="marginal", instance__egress_dollars_per_gb=price, num_steps=3)
        for price in (0.0, 1.0)
    ]
    free, dear = (rows[-1]["instance_cap"] for _, rows in found)
    assert dear == 0 < free


@pytest.mark.soak
def test_as_many_are_wanted_as_bring_the_most_for_the_money():
    prices = {"instance__price_per_hour": 12.0}
    _, rows = steps(8, policy__sizing="marginal", **prices)
    config = make_config(**{**MODEL, **prices})
    efficiency = {}
    for count in (1, 2, 4):
        each = steps(count, **prices)[1][2:]
        spent = sum(dollars(config, row) for row in each)
        efficiency[count] = sum(row["response_tokens"] for row in each) / spent
    wanted = rows[-1]["instance_cap"]
    assert wanted in (1, 2)
    assert max(efficiency, key=efficiency.__getitem__) in (1, 2)


def test_a_mixed_fleet_goes_by_speed():
    """Every second instance takes thrice as long, which is known after two steps."""
    mixed = {"instance__slow_every": 2, "instance__slow_factor": 3.0, "num_steps": 5}
    mixed["workload__prompts_per_step"] = 16
    _, pending = steps(4, **mixed)
    _, speed = steps(4, policy__routing="speed", **mixed)
    assert seconds(speed, 3).mean() < 0.95 * seconds(pending, 3).mean()


CROWDED = {"engine__slots": 8, "workload__group_correlation": 0.8}


@pytest.mark.parametrize("instances", [0, 1])
def test_the_longest_first_where_slots_are_few(instances):
    """Over two seeds: a step so small hangs on a few responses."""
    usual, longest = (
        np.mean([seconds(steps(instances, seed=seed, **CROWDED, policy__longest_first=first)[1], 2)
                 for seed in (1, 2)])
        for first in (False, True)
    )  # fmt: skip
    assert longest < 0.97 * usual


@pytest.mark.parametrize(("slots", "instances", "expected"), [(8, 1, True), (22, 6, False)])
def test_the_longest_first_only_where_that_is_predicted_to_pay(slots, instances, expected):
    """An eighth of all rollouts begins at once, or nearly all."""
    crowded = {**CROWDED, "engine__slots": slots, "num_steps": 3}
    world, _ = steps(instances, policy__longest_first=True, **crowded)
    assert world.manager.components.plans.by_length == expected


def test_the_order_of_requests_that_begin_at_once_makes_no_difference():
    ample = {"engine__slots": 128, "policy__seeding": False, "policy__balance": False}
    _, usual = steps(4, num_steps=3, **ample)
    _, longest = steps(4, num_steps=3, policy__longest_first=True, **ample)
    assert usual == longest


def test_the_order_for_drafts_costs_little_where_none_are_made():
    """More responses than slots, and three instances: the same tokens in about the same time."""
    usual, ordered = (steps(3, policy__siblings_follow=follow)[1] for follow in (False, True))
    tokens = [[row["response_tokens"] for row in rows] for rows in (usual, ordered)]
    assert tokens[0] == tokens[1]
    assert seconds(ordered).mean() <= 1.1 * seconds(usual).mean()


def test_a_model_that_knows_of_drafts_predicts_steps_better():
    """A rollout that samples several tokens in a step does not speak for the others."""
    drafts = {"engine__most_drafts": 3, "engine__draft_acceptance": 0.8, "engine__slots": 16,
              "engine__token_rows": 128, "policy__siblings_follow": True}  # fmt: skip

    def error():
        """Mean error of a predicted step, relative."""
        world, rows = steps(3, num_steps=5, policy__sizing="marginal", **drafts)
        actual = {row["step"]: row["step_seconds"] for row in rows}
        predicted = {p["step"] + 1: dict(size[:2] for size in p["sizes"])[3]
                     for p in world.predictions if p["step"] + 1 in actual}  # fmt: skip
        return np.mean([abs(seconds / actual[step] - 1) for step, seconds in predicted.items()])

    found, usual = error(), simulated_world.settings
    unaware = lambda *arguments: replace(usual(*arguments), drafts=False)  # noqa: E731
    with mock.patch.object(simulated_world, "settings", unaware):
        assert found < error() - 0.05
