"""Dollars worked out by hand."""

import pytest

from rlboost_jax.simulator.economics import break_even, dollars, on_demand_price


def row(tokens, seconds, *, billed=0.0, egress=0.0):
    return {
        "response_tokens": tokens,
        "step_seconds": seconds,
        "billed_instance_seconds": billed,
        "egress_bytes": egress,
    }


def test_a_step_by_hand(make):
    config = make(
        instance__price_per_hour=6.0,
        instance__egress_dollars_per_gb=0.1,
        reserved__price_per_node_hour=72.0,
        reserved__nodes=2,
    )
    # 100 s of two nodes, 300 instance-seconds, 5 GB.
    assert dollars(config, row(1, 100.0, billed=300.0, egress=5e9)) == pytest.approx(
        4.0 + 0.5 + 0.5
    )


def test_instances_at_the_price_of_reserved_chips(make):
    config = make(reserved__chips_per_node=8, reserved__price_per_node_hour=80.0)
    assert on_demand_price(config) == 20.0


def test_break_even_by_hand(make):
    config = make(reserved__chips_per_node=8, reserved__price_per_node_hour=80.0)
    alone = [row(1000, 3600.0)]  # 80 $ for 1,000 tokens
    # Four instances and 1.5 times the tokens: worth 120 $; 40 $ of that for 4 instance-hours
    # of 20 $: half the price.
    helped = [row(1500, 3600.0, billed=4 * 3600.0)]
    assert break_even(config, helped, alone, baseline_nodes=1) == pytest.approx(0.5)
    assert break_even(config, [row(3000, 3600.0, billed=3600.0)], alone, baseline_nodes=1) == 0.0
    assert break_even(config, [row(900, 3600.0, billed=1.0)], alone, baseline_nodes=1) is None
    # Two nodes for the same tokens cost twice as much: there is more to spend.
    assert break_even(config, helped, alone, baseline_nodes=2) == 0.0
