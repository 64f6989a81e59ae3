"""What `rlboost_jax/simulator` assumes of the same chip, beside the bounds of the table.

Two assumptions: `configs/sim/h100.py`'s, which are the table's bounds over one share, and those of
the paper's evaluation (`configs/sim/base.py`), which were fitted to what it published.
"""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from benchmarks.h100 import chip
from benchmarks.h100.bounds import known_bounds
from benchmarks.h100.checkpoints import run_of
from benchmarks.h100.names import GRADIENTS, packed_size
from configs.sim import base, h100
from rlboost_jax.simulator.rates import EngineRates, train_seconds
from rlboost_jax.simulator.sim_config_loading import sim_config

_NAMES = (
    *("program", "config", "mesh"),
    *("seconds_least", "seconds_serial", "seconds_overlapped"),
)
PAPER = {"qwen3_8b_openr1": "8b", "qwen3_14b_openr1": "14b", "qwen3_32b_openr1": "32b"}


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
        f"own runs (configs/sim/h100.py): {h100.REACHED:.0%} of the speed of the serial bounds",
        f"the paper's engine: {engine.memory_efficiency:.1%} of the bandwidth when decoding, "
        f"{engine.compute_efficiency:.0%} of the FLOPs in prefill, "
        f"{engine.step_overhead_seconds * 1e3:g} ms on top of each decode step",
        f"the paper's learner: MFU {trainer.compute_efficiency:.1%} over "
        f"{trainer.forward_passes:g} forward passes' worth of FLOPs, "
        f"{trainer.apply_seconds:g} s for an update",
    ]


def comparison(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each row that the simulator has a time for: seconds that it assumes, for a run of one's
    own and for the paper's; None where a run has no such mesh or the paper no such model."""
    found, bounds = [], known_bounds(rows)
    for row in rows:
        if row.get("failed") or row["part"] == "kernels":
            continue
        own = None
        if row["config"] in bounds and _is_own(row):
            own = _seconds(row, h100.simulation(row["config"], bounds[row["config"]]))
        paper = _seconds(row, _paper(row)) if row["config"] in PAPER else None
        if own is None and paper is None:
            continue
        figures = {name: row[name] for name in _NAMES}
        found.append({**figures, "seconds_simulated": own, "seconds_simulated_paper": paper})
    return found


def _is_own(row: dict[str, Any]) -> bool:
    """Whether a run of that configuration has this mesh, and the kernel that the bounds are of."""
    if row["part"] == "learner":
        return row["mesh"] == ",".join(map(str, run_of(row["config"]).learner.mesh))
    return bool(row["program"].endswith("mosaic_gpu"))


def _paper(row: dict[str, Any]) -> ConfigDict:
    """Configuration of the paper's cluster, with as many GPUs as the row's program."""
    values = base.get_config(PAPER[row["config"]])
    values.engine.chips = run_of(row["config"]).engine.tensor_parallel
    if row["part"] == "learner":
        values.reserved.nodes, values.reserved.chips_per_node = 1, row["devices"]
    return values


def _seconds(row: dict[str, Any], values: ConfigDict) -> float | None:
    run, config = run_of(row["config"]), sim_config(values)
    if row["program"].startswith("decode"):
        slots, context = run.engine.slots, row["context"]
        steps = run.engine.steps_per_dispatch
        return steps * EngineRates(config).step_seconds(slots, slots * context)
    if row["program"].startswith(GRADIENTS):
        count, tokens = packed_size(row["program"])
        return train_seconds(config, [tokens] * count)
    return None
