"""The co-located baseline, as veRL runs it: generate everything, then train everything.

Source: Sheng et al. 2025, arXiv:2409.19256. The learner waits for the longest response. Groups
are dealt out to the reserved engines either all at once, before anything is known of their
lengths (what veRL did when it was compared with), or as room comes up. This shares the models
of engine and learner with the manager's world and nothing else, so that a world without
instances has something to be compared with.
"""

import heapq
from collections import deque
from typing import Any

from rlboost_jax.simulator.rates import EngineRates, train_seconds
from rlboost_jax.simulator.response_lengths import response_lengths
from rlboost_jax.simulator.row_clocks import Row
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.simulated_engine import SimulatedEngine


def colocated(
    config: SimConfig, *, seed: int, seconds: float, static: bool = False
) -> list[dict[str, Any]]:
    """Simulate `config.num_steps` steps, or as many as end within `seconds`; a row for each.

    Args:
        static: every engine gets its share of the groups at the beginning of a step.
    """
    rates = EngineRates(config, reserved=True)
    hourly = config.reserved.nodes * config.reserved.price_per_node_hour
    rows: list[dict[str, Any]] = []
    now = 0.0
    while not 0 < config.num_steps <= len(rows):
        step = len(rows)
        work = config.workload
        lengths = response_lengths(work, seed=seed, step=step).tolist()
        generating = _generate(config, rates, lengths, static=static)
        training = _train(config, lengths)
        trainer = config.trainer
        whole = trainer.begin_seconds + generating + trainer.switch_seconds + training
        if now + whole > seconds:
            break
        rows.append(
            {
                "step": step,
                "begun_at": now,
                "response_tokens": sum(lengths),
                "step_seconds": whole,
                "rollout_seconds": generating,
                "train_seconds": training,
                "tokens_generated": sum(lengths),
                "tokens_delivered": sum(lengths),
                "tokens_lost": 0,
                "billed_instance_seconds": 0.0,
                "egress_bytes": 0.0,
                "cost_dollars": whole / 3600 * hourly,
            }
        )
        now += whole
    return rows


def _generate(config: SimConfig, rates: EngineRates, lengths: list[int], *, static: bool) -> float:
    """Seconds until the last engine is done."""
    work, settings = config.workload, config.engine
    engines = [
        SimulatedEngine(
            rates,
            slots=rates.slots,
            dispatch_tokens=settings.dispatch_tokens,
            message_tokens=settings.message_tokens,
        )
        for _ in range(config.num_engines)
    ]
    rows = [
        Row(sample, (0, sample // work.group_size), work.prompt_tokens, length, 0, 0)
        for sample, length in enumerate(lengths)
    ]
    most = len(rows) if static else rates.slots
    waiting: deque[Row] = deque()
    for row in rows:
        engine = min(engines, key=lambda e: e.held)
        if static:
            engine = engines[row.group[1] % len(engines)]
        if engine.held < most:
            engine.add([row], 0.0)
        else:
            waiting.append(row)
    now = 0.0
    due = [(engine.due_at, number) for number, engine in enumerate(engines) if engine.held]
    heapq.heapify(due)
    while due:
        now, number = heapq.heappop(due)
        engine = engines[number]
        engine.advance(now)
        engine.report(now)
        while waiting and engine.held < most:
            engine.add([waiting.popleft()], now)
        if engine.held:
            heapq.heappush(due, (engine.due_at, number))
    return now


def _train(config: SimConfig, lengths: list[int]) -> float:
    """Seconds of all micro-batches and the update."""
    work, trainer = config.workload, config.trainer
    micro_batches = -(-work.prompts_per_step // trainer.micro_batch_prompts)
    tokens = [work.prompt_tokens + length for length in lengths]
    return (
        train_seconds(config, tokens)
        + micro_batches * trainer.micro_batch_seconds
        + trainer.apply_seconds
    )
