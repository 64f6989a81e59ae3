"""What a simulated run cost, and what it yielded for that.

Dollars are reserved nodes for the whole time, instances from their order to their end (boot,
idle time and drain included), and bytes that left the learner, begun and given-up pulls
included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlboost_jax.simulator.sim_config import SimConfig

Row = Mapping[str, Any]


def dollars(config: SimConfig, row: Row, *, instance_price: float | None = None) -> float:
    """Compute the dollars of one step.

    Args:
        instance_price: per hour, another than the configuration's.
    """
    reserved = config.reserved.nodes * config.reserved.price_per_node_hour
    price = config.instance.price_per_hour if instance_price is None else instance_price
    return float(
        row["step_seconds"] / 3600 * reserved
        + row["billed_instance_seconds"] / 3600 * price
        + row["egress_bytes"] / 1e9 * config.instance.egress_dollars_per_gb
    )


def on_demand_price(config: SimConfig) -> float:
    """Price per hour of an instance's chips at the rate of reserved ones."""
    chips = config.engine.chips / config.reserved.chips_per_node
    return chips * config.reserved.price_per_node_hour


def break_even(
    config: SimConfig, rows: Sequence[Row], baseline: Sequence[Row], *, baseline_nodes: int
) -> float | None:
    """Least discount on instances at which a run trains more tokens per dollar than another.

    Tokens per dollar fall linearly in their inverse with the instances' price, so it is where
    two straight lines meet; 0 where it wins at the full price, None where it never does.

    Args:
        baseline: rows without instances, of a run on `baseline_nodes` reserved nodes.
    """
    nodes = replace(config, reserved=replace(config.reserved, nodes=baseline_nodes))
    theirs = sum(dollars(nodes, row) for row in baseline) / _tokens(baseline)
    free = sum(dollars(config, row, instance_price=0.0) for row in rows)
    hours = sum(row["billed_instance_seconds"] for row in rows) / 3600
    allowed = theirs * _tokens(rows) - free  # dollars for instances
    if hours <= 0:
        return 0.0 if allowed >= 0 else None
    if allowed < 0:
        return None
    return max(0.0, 1 - allowed / hours / on_demand_price(config))


def _tokens(rows: Sequence[Row]) -> float:
    return float(sum(row["response_tokens"] for row in rows))
