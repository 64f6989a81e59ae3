"""The systems that are compared, each by its name in `config.systems`.

- rlboost: the manager as it is, with the policies of RLBoost (NSDI '26) as published.
- public_code: RLBoost as its public code behaves, see `public_code.py`. It hands over to instances
  whether there are any or not: with 0 of them no step ever ends.
- model_window: the same, with windows predicted by the manager's model.
- marginal: that, and as many instances as make tokens cheapest.
- merged: that, and instances are let go while a step has no work for them.
- lag_1, lag_2: model_window, with so many batches begun ahead of the one that is trained on.
- no_seeding, no_memory, no_balance, no_migration: the same, less one of them.
- sync_weights: the same, but weights are sent when a step begins, as collectives send them:
  an instance that joins in mid-step works from the next step on.
- colocated: everything on the reserved nodes, work dealt out as engines have room.
- colocated_static: the same, dealt out beforehand, as veRL did when RLBoost was compared with it.
- colocated_2x: the same on twice as many nodes, at twice the price.
- disaggregated: StreamRL's synchronous way (Zhong et al. 2025, arXiv:2504.15930) by the same
  manager. The reserved nodes only train; a fixed number of instances at the reserved price
  generates, and training follows group by group. With 0 instances nothing is ever generated.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rlboost_jax.simulator.colocated import colocated
from rlboost_jax.simulator.economics import on_demand_price
from rlboost_jax.simulator.market.simulated_market import Market, static
from rlboost_jax.simulator.public_code import PublicCode
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.world import World

FOREVER: Final = 1e9  # seconds
Rows = list[dict[str, Any]]
Simulated = tuple[SimConfig, Rows | None]  # None: it generates nothing and never ends a step
Worlds = Callable[..., World]
System = Callable[[SimConfig, Market, int, float, Worlds], Simulated]


def rows_of(
    system: str, config: SimConfig, market: Market, *, seed: int, world: Worlds = World
) -> Simulated:
    """Simulate one system on one market.

    Args:
        world: makes the one that it lives in.

    Returns:
        the configuration that it had (its nodes and prices), and a row per step.
    """
    seconds = min(market.seconds, FOREVER)
    if math.isfinite(market.seconds):
        config = replace(config, num_steps=0)
    return SYSTEMS[system](config, market, seed, seconds, world)


def _with_manager(**changes: Any) -> System:
    def run(
        config: SimConfig, market: Market, seed: int, seconds: float, world: Worlds
    ) -> Simulated:
        config = replace(config, policy=replace(config.policy, **changes))
        return config, world(config, market.changes, seed=seed, seconds=seconds).run()

    return run


def _lag(versions: int) -> System:
    def run(
        config: SimConfig, market: Market, seed: int, seconds: float, world: Worlds
    ) -> Simulated:
        config = replace(
            config,
            trainer=replace(config.trainer, lag=versions),
            # Long responses begun late are what an older batch keeps engines half empty for.
            policy=replace(config.policy, window="model", longest_first=True),
        )
        return config, world(config, market.changes, seed=seed, seconds=seconds).run()

    return run


def _sync_weights(
    config: SimConfig, market: Market, seed: int, seconds: float, world: Worlds
) -> Simulated:
    config = replace(config, links=replace(config.links, in_step=False))
    return config, world(config, market.changes, seed=seed, seconds=seconds).run()


def _public_code(
    config: SimConfig, market: Market, seed: int, seconds: float, world: Worlds
) -> Simulated:
    if market.instances == 0:
        return config, None
    config = replace(config, policy=replace(config.policy, window_memory=False, sizing="fixed"))
    manager = partial(
        PublicCode,
        table=dict(config.policy.public_table),
        accelerators=config.reserved.nodes * config.reserved.chips_per_node,
    )
    changes = market.changes
    made = world(config, changes, seed=seed, seconds=seconds, manager=manager, sleeps=True)
    return config, made.run()


def _colocated(nodes: int, *, static: bool = False) -> System:
    def run(
        config: SimConfig, market: Market, seed: int, seconds: float, world: Worlds
    ) -> Simulated:
        config = replace(
            config, reserved=replace(config.reserved, nodes=nodes * config.reserved.nodes)
        )
        return config, colocated(config, seed=seed, seconds=seconds, static=static)

    return run


def _disaggregated(
    config: SimConfig, market: Market, seed: int, seconds: float, world: Worlds
) -> Simulated:
    """Simulate with as many instances as keep the learner busy.

    They are those of the fleet, if that is fixed, else as many as the reserved nodes have engines.
    """
    instances = config.num_engines if market.instances is None else market.instances
    config = replace(
        config,
        policy=replace(config.policy, seeding=False, sizing="fixed"),
        instance=replace(config.instance, price_per_hour=on_demand_price(config)),
    )
    if not instances:
        return config, None
    changes = static(instances).changes
    made = world(config, changes, seed=seed, seconds=seconds, reserved_engines=False)
    return config, made.run()


SYSTEMS: Final[dict[str, System]] = {
    "rlboost": _with_manager(),
    "public_code": _public_code,
    "model_window": _with_manager(window="model"),
    "marginal": _with_manager(window="model", sizing="marginal"),
    "merged": _with_manager(window="model", sizing="marginal", merge_tail=True),
    "no_seeding": _with_manager(seeding=False),
    "no_memory": _with_manager(window_memory=False),
    "no_balance": _with_manager(balance=False),
    "no_migration": _with_manager(migration=False),
    "lag_1": _lag(1),
    "lag_2": _lag(2),
    "sync_weights": _sync_weights,
    "colocated": _colocated(1),
    "colocated_static": _colocated(1, static=True),
    "colocated_2x": _colocated(2),
    "disaggregated": _disaggregated,
}
BASELINE: Final = "colocated"  # what all are compared with
PUBLISHED: Final = "rlboost"  # what others are compared with as well, where it is simulated
