"""Convert rows of the table to the seconds of a simulated server and learner.

All are serial bounds: arithmetic, memory, launches, links and round trips one after the other, at
the data sheet's rates. What is faster, the busiest of these alone, takes kernels that hide all
others. `configs/sim/h100.py` says how much slower than these a run is taken to be.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.h100 import chip
from benchmarks.h100.checkpoints import run_of
from benchmarks.h100.engine import memory_plan
from benchmarks.h100.jobs import MESHES, verifying
from benchmarks.h100.names import GRADIENTS, packed_size
from benchmarks.h100.program import attention_flops
from rlboost_jax.engine.layouts import make_layout
from rlboost_jax.models.adapters import base_model
from rlboost_jax.settings.memory_estimates import num_parameters, page_bytes, share_of
from rlboost_jax.settings.run_config import RunConfig

Row = Mapping[str, Any]


def bounds_of(name: str, rows: Sequence[Row]) -> dict[str, float]:
    """Bounds of a run of `configs/`, by name: the model's sizes, and seconds.

    Args:
        rows: of the table; those of the run's own mesh and of Mosaic's kernel are looked at.

    Raises ValueError where one is missing or failed to compile.
    """
    run = run_of(name)
    mesh = ",".join(map(str, run.learner.mesh))
    learner = {r["program"]: r for r in rows if r["job"] == f"learner {name} {mesh}"}
    engine = {r["program"]: r for r in rows if r["job"] == f"engine {name} mosaic_gpu"}
    verify = next((r for r in rows if r["job"] == str(verifying(name))), None)
    gradients = [row for program, row in learner.items() if program.startswith(GRADIENTS)]
    wanted = [
        *(gradients or [None]),
        *(learner.get(program) for program in ("combine", "apply")),
        *(engine.get(program) for program in ("decode mosaic_gpu", "mixed mosaic_gpu")),
    ]
    if any(row is None or row.get("failed") for row in wanted):
        raise ValueError(f"{name}: the table lacks a program of its learner or server")
    return {
        **_sizes(run),
        **server(run, engine["decode mosaic_gpu"], engine["mixed mosaic_gpu"]),
        **drafting(run, engine["decode mosaic_gpu"], verify),
        **training(gradients),
        "batch_seconds": learner["combine"]["seconds_serial"],
        "update_seconds": learner["apply"]["seconds_serial"],
    }


def known_bounds(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Bounds of all runs whose rows are there, by name."""
    found = {}
    for name in MESHES:
        with contextlib.suppress(ValueError):
            found[name] = bounds_of(name, rows)
    return found


def server(run: RunConfig, decode: Row, mixed: Row) -> dict[str, float]:
    """A decode step is linear in the tokens that it looks at: their keys and values are read, and
    multiplied. What is left of a row is the same for any batch, whose rows are always as many.

    A prompt's tokens cost what those of a step with nothing else do.
    """
    layout = make_layout(run.engine, run.slot_tokens, any_rows=False, exact=run.deterministic)
    model, split = base_model(run.model), run.engine.tensor_parallel
    read = page_bytes(share_of(model, split), run.engine) / run.engine.page_size
    products = attention_flops(model, 1.0) / split
    each = read / chip.MEMORY_RATE + products / chip.FLOPS["bf16"]
    seconds = decode["seconds_serial"] / run.engine.steps_per_dispatch
    return {
        "step_seconds": seconds - layout.slots * decode["context"] * each,
        "context_token_seconds": each,
        "prefill_token_seconds": mixed["seconds_serial"] / layout.token_rows,
    }


def drafting(run: RunConfig, decode: Row, verify: Row | None) -> dict[str, float]:
    """Seconds that a decode step with a draft in every free row takes more, where it was compiled.

    Head and sampler run over all rows, texts are matched. A row of drafts reads what its sequence
    does, so contexts make no difference.
    """
    if verify is None or verify.get("failed"):
        return {}
    more = verify["seconds_serial"] - decode["seconds_serial"]
    return {"draft_seconds": more / run.engine.steps_per_dispatch}


def training(gradients: Sequence[Row]) -> dict[str, float]:
    """A row of n tokens takes a · n + b · n² / 2 seconds, through its shortest and longest size;
    where all have one length b is in a.
    """
    sizes = sorted((packed_size(row["program"])[1], row) for row in gradients)
    (short, first), (long, last) = (
        (length, row["seconds_serial"] / row["tokens"]) for length, row in (sizes[0], sizes[-1])
    )
    slope = (last - first) / (long - short) if long > short else 0.0
    return {"token_seconds": first - slope * short, "pair_seconds": 2 * slope}


def written(found: Mapping[str, Mapping[str, float]], jax: str) -> str:
    """The file that keeps them where packages have no table: `configs/sim/h100_bounds.py`."""
    lines = [
        '"""What an H100 takes at least for each run of `configs/`. Do not edit.',
        "",
        "Written by `python -m benchmarks.h100.derived`; `benchmarks/h100/bounds.py` says what the",
        f"figures are. Rows of `benchmarks/results/h100.json`, compiled by jax {jax}.",
        '"""',
        "",
        "BOUNDS: dict[str, dict[str, float]] = {",
    ]
    for name, figures in found.items():
        lines.append(f'    "{name}": {{')
        lines += [f'        "{key}": {_text(value)},' for key, value in figures.items()]
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def _sizes(run: RunConfig) -> dict[str, float]:
    """Sizes of the model that servers hold, and the tokens that a server has pages for."""
    model = base_model(run.model)
    return {
        "num_params": num_parameters(model),
        "num_layers": model.num_layers,
        "num_query_heads": model.num_query_heads,
        "num_key_heads": model.num_key_heads,
        "head_dim": model.head_dim,
        "kv_tokens": memory_plan(run, run.engine).num_pages * run.engine.page_size,
    }


def _text(value: float) -> str:
    """Six digits, or all of a whole number."""
    if isinstance(value, int):
        return str(value) if value < 10_000 else f"{value:_}"
    assert math.isfinite(value)
    return repr(float(f"{value:.6g}"))
