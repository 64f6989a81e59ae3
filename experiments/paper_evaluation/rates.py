"""What the table of an H100's programs says of the chips that the paper had.

    python -m experiments.paper_evaluation.rates

veRL, FSDP and SGLang are not the programs of the table, but they read the same weights and cache,
multiply as often and gather as much. So the table's serial bounds, and the share of their speed
that `configs/sim/h100.py` assumes of any run, give these rates; none is fitted to what the paper
published.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.h100.checkpoints import run_of
from benchmarks.h100.names import GRADIENTS, packed_size
from configs.sim import base
from configs.sim.h100 import REACHED
from rlboost_jax.simulator.rates import train_seconds
from rlboost_jax.simulator.sim_config_loading import sim_config

TABLE = Path(__file__).parents[2] / "benchmarks/results/h100.json"
RUNS = {"8b": "qwen3_8b_openr1", "14b": "qwen3_14b_openr1", "32b": "qwen3_32b_openr1"}
_OF_SIX = 5  # of six forward passes' worth, what recomputing in the backward pass is not
Row = Mapping[str, Any]


def of_table(rows: Sequence[Row]) -> dict[str, float]:
    """Settings of a simulation. The step's overhead is the least there is: of 14B on two GPUs, what
    is not memory; what an engine's host does besides comes on top.

    Args:
        rows: of the table. Learners are those of 8 GPUs a node with rows side by side.
    """
    decode = _row(rows, f"engine {RUNS['14b']} mosaic_gpu", "decode")
    steps = run_of(RUNS["14b"]).engine.steps_per_dispatch
    besides = sum(decode["seconds"][name] for name in ("arithmetic", "collectives"))
    learners = {model: _learner(rows, model) for model in RUNS}
    return {
        "engine.memory_efficiency": REACHED,
        "engine.compute_efficiency": REACHED
        * statistics.fmean(scoring["mfu_serial"] for _, scoring in learners.values()),
        "engine.step_overhead_seconds": besides / steps / REACHED,
        "trainer.compute_efficiency": REACHED
        * statistics.fmean(_trained(model, *pair) for model, pair in learners.items()),
    }


def _learner(rows: Sequence[Row], model: str) -> tuple[Row, Row]:
    """Gradients of the longest rows, and scoring of the same."""
    job = f"learner {RUNS[model]} 1,{16 if model == '32b' else 8},1"
    return _row(rows, job, GRADIENTS), _row(rows, job, "gaps")


def _trained(model: str, gradients: Row, scoring: Row) -> float:
    """Share of the chips' FLOPs, counted as the simulator does, of what the bound takes: gradients
    and the scoring by old and reference policies, of which gradients may do one along the way."""
    passes = round(gradients["model_flops"] / scoring["model_flops"])
    seconds = gradients["seconds_serial"] + (_OF_SIX - passes) * scoring["seconds_serial"]
    count, tokens = packed_size(gradients["program"])
    values = base.get_config(model)
    values.trainer.compute_efficiency = 1.0
    return train_seconds(sim_config(values), [tokens] * count) / seconds


def _row(rows: Sequence[Row], job: str, program: str) -> Row:
    return next(r for r in rows if r["job"] == job and r["program"].startswith(program))


if __name__ == "__main__":
    for name, value in of_table(json.loads(TABLE.read_text())["rows"]).items():
        print(f"{name:<30}{value:.4g}")
