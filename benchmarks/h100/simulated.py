"""What `rlboost_jax/simulator` assumes of the same chip, beside the bounds of the table."""

from typing import Any

from benchmarks.h100 import chip
from benchmarks.h100.checkpoints import run_of
from configs.sim import base
from rlboost_jax.simulator.load import sim_config
from rlboost_jax.simulator.rates import EngineRates, train_seconds

SIMULATED = {"qwen3_8b_openr1": "8b", "qwen3_14b_openr1": "14b", "qwen3_32b_openr1": "32b"}


def rates() -> list[str]:
    """The data sheet as either has it, and the shares of it that the simulator counts on."""
    config = sim_config(base.get_config())
    ours = (chip.FLOPS["bf16"], chip.MEMORY_RATE, chip.MEMORY_BYTES)
    theirs = config.chip
    theirs_sheet = (theirs.flops_per_second, theirs.memory_bytes_per_second, theirs.memory_bytes)
    same = "as here" if ours == theirs_sheet else f"{theirs_sheet} and not {ours}"
    engine, trainer = config.engine, config.trainer
    return [
        f"data sheet: {same}",
        f"engine: {engine.memory_efficiency:.0%} of the bandwidth when decoding, "
        f"{engine.compute_efficiency:.0%} of the FLOPs in prefill, "
        f"{engine.step_overhead_seconds * 1e3:g} ms on top of each decode step",
        f"learner: MFU {trainer.compute_efficiency:.0%} over {trainer.forward_passes:g} forward "
        f"passes' worth of FLOPs, {trainer.apply_seconds:g} s for an update",
    ]


def comparison(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each row that the simulator has a time for: seconds that it assumes."""
    found = []
    for row in rows:
        if row.get("failed") or row["config"] not in SIMULATED:
            continue
        if seconds := _assumed(row):
            names = ("program", "config", "mesh", "seconds_least")
            bounds = {
                f"seconds_{name}": row[f"seconds_{name}"] for name in ("serial", "overlapped")
            }
            found.append({**{n: row[n] for n in names}, **bounds, "seconds_simulated": seconds})
    return found


def _assumed(row: dict[str, Any]) -> float | None:
    run = run_of(row["config"])
    values = base.get_config(SIMULATED[row["config"]])
    values.engine.chips = run.engine.tensor_parallel
    if row["program"].startswith("decode"):
        steps = run.engine.steps_per_dispatch
        slots = run.engine.slots
        context = row["context"] * slots
        return steps * EngineRates(sim_config(values)).step_seconds(slots, context)
    if row["program"].startswith("gradients"):
        values.reserved.nodes, values.reserved.chips_per_node = 1, row["devices"]
        count, _, tokens = row["program"].removeprefix("gradients ").partition(" x ")
        return train_seconds(sim_config(values), [int(tokens.replace(",", ""))] * int(count))
    return None
