"""A simulated fleet of three speeds and prices, and what no fleet of them can beat."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog

from rlboost_jax.settings.pool_config import PoolConfig
from rlboost_jax.simulator.market.kinds import MachineKind, Machines, machine_name
from rlboost_jax.simulator.market.simulated_market import MachineChange
from rlboost_jax.simulator.rates import EngineRates, train_seconds
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.world import World


@dataclass(frozen=True, kw_only=True)
class Kind:
    """
    Attributes:
        slowness: times the seconds of the configuration's engine.
        most: machines on loan.
    """

    slowness: float
    price_per_hour: float
    most: int
    start_seconds: float = 60.0


def machines_of(config: SimConfig, kinds: Mapping[str, Kind]) -> Machines:
    return Machines(
        kinds={
            name: MachineKind(
                rates=EngineRates(config).slowed(kind.slowness),
                device=name,
                zone="",
                price_per_hour=kind.price_per_hour,
                start_seconds=kind.start_seconds,
                notice_seconds=0.0,
                egress_dollars_per_gb=0.0,
            )
            for name, kind in kinds.items()
        },
        reserved_device="own",
        pools=pools_of(kinds),
    )


def pools_of(kinds: Mapping[str, Kind]) -> tuple[PoolConfig, ...]:
    return tuple(
        PoolConfig(
            name=name, max_instances=kind.most, price_per_hour=kind.price_per_hour, device=name
        )
        for name, kind in kinds.items()
    )


def lent(kinds: Mapping[str, Kind]) -> tuple[MachineChange, ...]:
    """All of them, from the first moment on."""
    return tuple(
        MachineChange(0.0, True, machine_name(name, number))
        for name, kind in kinds.items()
        for number in range(kind.most)
    )


def world(
    config: SimConfig,
    kinds: Mapping[str, Kind],
    changes: Sequence[MachineChange],
    *,
    seed: int,
    make: Callable[..., World] = World,
) -> World:
    return make(
        config,
        changes,
        seed=seed,
        seconds=1e7,
        machines=machines_of(config, kinds),
    )


def tokens_per_dollar(config: SimConfig, rows: Sequence[Mapping[str, Any]]) -> float:
    hourly = config.reserved.nodes * config.reserved.price_per_node_hour
    dollars = sum(r["step_seconds"] / 3600 * hourly + r["instance_dollars"] for r in rows)
    return float(sum(row["response_tokens"] for row in rows) / dollars)


def fluid_bound(
    config: SimConfig, kinds: Mapping[str, Kind], lengths: Sequence[Sequence[int]]
) -> float:
    """Tokens per dollar that no fleet of these machines can exceed, whatever it does.

    Work is divided at will and nothing is ever idle, lost or moved. Of a step of S seconds the
    learner's chips generate for S − C, kind k has machines for m_k ≤ most_k · S seconds, and
    (S − C) · engines / w_0 + Σ m_k / w_k ≥ 1, with w the seconds that an engine would take for the
    whole step at full slots. The least of R · S + Σ c_k · m_k is a linear programme.
    """
    work, tokens_all, dollars_all = config.workload, 0.0, 0.0
    hourly = config.reserved.nodes * config.reserved.price_per_node_hour
    for step in lengths:
        tokens = np.asarray(step, float)
        reads = float((tokens * work.prompt_tokens + tokens * (tokens - 1) / 2).sum())
        trainer = config.trainer
        learner = (
            trainer.begin_seconds
            + trainer.switch_seconds
            + trainer.apply_seconds
            + config.weight_bytes / config.links.host_bytes_per_second
            + train_seconds(config, [work.prompt_tokens + int(n) for n in step])
            + trainer.micro_batch_seconds * work.prompts_per_step / trainer.micro_batch_prompts
        )

        def seconds(rates: EngineRates, tokens: Any = tokens, reads: float = reads) -> float:
            fixed, slope = rates.step_line
            return float(fixed * tokens.sum() / rates.slots + slope * reads)

        own = config.num_engines / seconds(EngineRates(config, reserved=True))
        rates = [EngineRates(config).slowed(kind.slowness) for kind in kinds.values()]
        each = [1.0 / seconds(rate) for rate in rates]
        most = [kind.most for kind in kinds.values()]
        price = [hourly, *(kind.price_per_hour for kind in kinds.values())]
        limits = [[-n, *(float(i == j) for j in range(len(most)))] for i, n in enumerate(most)]
        found = linprog(
            np.array(price) / 3600,
            A_ub=[[-own, *(-e for e in each)], *limits],
            b_ub=[-1.0 - own * learner, *[0.0] * len(most)],
            bounds=[(learner, None), *[(0.0, None)] * len(most)],
        )
        assert found.success, found.message
        tokens_all, dollars_all = tokens_all + float(tokens.sum()), dollars_all + found.fun
    return tokens_all / dollars_all
