"""Parts of gpu.py beside which there is something to hold: h100.json, and the start of a run.

`table` runs the programs of benchmarks/results/h100.json that need one device, and puts what they
take beside what the table bounds it with. `qualification` is what the starts of engines and
learners would choose.
"""

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu_kernels import figure
from benchmarks.h100.jobs import ATTENTION, KERNELS, MESHES, Job

PREDICTED = Path(__file__).parent / "results" / "h100.json"
ALONE = (1, 1, 1)  # the mesh of a learner on one device
ROUNDS = 7  # whose median counts, after one that does not
CALLS = 20  # in a round, one after the other, of a program that is over in a moment
MOMENT = 1e-3  # seconds
SPARE_BYTES = 4e9  # of the device, beside what the table says a program holds
# Beginnings of names of kernels for GPUs alone: last, since they may take their process down.
LAST = ("attention triton", "attention mosaic_gpu", "packed attention", "grouped")
_DRY = "qwen3_06b_gsm8k"


def jobs(*, dry_run: bool) -> list[Job]:
    """Those of `benchmarks/h100` that one device may do; an engine says if it needs more."""
    if dry_run:
        return [
            Job("learner", _DRY, mesh=ALONE),
            Job("engine", _DRY, attention="auto"),
            Job("kernels", _DRY),
        ]
    found = [Job("kernels", config) for config in KERNELS]
    found += [Job("engine", config, attention=name) for config in MESHES for name in ATTENTION]
    alone = [config for config, meshes in MESHES.items() if ALONE in meshes]
    return found + [Job("learner", config, mesh=ALONE) for config in alone]


def table(*, dry_run: bool, which: str = "") -> Iterator[dict[str, Any]]:
    """Measured beside predicted, for the programs of one job, or of all of them.

    Args:
        which: of the jobs, as it puts itself.
    """
    chosen = [job for job in jobs(dry_run=dry_run) if which in ("", str(job))]
    for job in chosen:
        yield from _rows(job, dry_run=dry_run)


def configs(*, dry_run: bool) -> tuple[str, ...]:
    """Those whose choices `qualification` lists."""
    return (_DRY,) if dry_run else tuple(MESHES)


def qualification(*, dry_run: bool, which: str = "", **host: Any) -> list[dict[str, Any]]:
    """What each configuration's engines and learners would run here: every candidate, and why not.

    Nothing kept is read, and nothing is kept.

    Args:
        which: of the configurations; "": all.
        host: of `verdict_here`, if it is another than this.
    """
    from rlboost_jax.qualification.choice import choose

    figures = []
    for config in [which] if which else configs(dry_run=dry_run):
        run = _run(Job("engine", config), dry_run=dry_run)
        for what, plain, verdict in _verdicts(run, interpret=dry_run, **host):
            choice = choose(verdict, plain=plain, steady=run.deterministic)
            figures += _tried(config, what, choice)
    return figures


def _verdicts(run: Any, *, interpret: bool, **host: Any) -> Iterator[tuple[str, str, Any]]:
    """What is chosen, its plain form, and the trials."""
    from rlboost_jax.qualification import learner_start
    from rlboost_jax.qualification.start import verdict_here

    verdict, _ = verdict_here(run, folder=None, interpret=interpret, **host)
    yield "engine.attention", "xla", verdict
    yield from learner_start.verdicts_here(run, folder=None, interpret=interpret, **host)


def _tried(config: str, what: str, choice: Any) -> Iterator[dict[str, Any]]:
    from rlboost_jax.qualification.choice import described

    name = f"{config} {what}"
    yield {
        **figure(f"{name}: chosen", choice.candidate, ""),
        "line": described(choice, what),
    }
    for trial in choice.verdict.trials:
        text = trial.outcome + (f": {trial.reason}" if trial.reason else "")
        value = 1e3 * trial.seconds if trial.seconds is not None else text
        yield {
            **figure(f"{name}: {trial.candidate}", value, "ms" * bool(trial.seconds)),
            "outcome": trial.outcome,
            "reason": trial.reason,
            "error": trial.error,
        }


def _rows(job: Job, *, dry_run: bool) -> Iterator[dict[str, Any]]:
    run = _run(job, dry_run=dry_run)
    if job.part == "engine" and run.engine.tensor_parallel > 1:
        count = run.engine.tensor_parallel
        yield figure(str(job), f"left out: engine.tensor_parallel is {count}", "")
        return
    predicted = {} if dry_run else _predicted(str(job))
    run, layers = _cut_to_fit(job, run)
    for program in sorted(_programs(job, run), key=lambda program: program.name.startswith(LAST)):
        name = f"{job.config} {program.name}"
        if dry_run and program.name.startswith(LAST):
            continue  # they are for GPU
        row = predicted.get(program.name, {})
        try:
            seconds = _seconds(job, run, program)
            yield _compared(name, seconds, row, layers)
        except Exception as error:  # the next program may run
            reason = f"failed: {type(error).__name__}: {error}".splitlines()[0][:200]
            yield {**figure(name, reason, ""), "predicted": row.get("seconds_serial")}


def _compared(
    name: str, seconds: float, row: dict[str, Any], layers: tuple[int, int]
) -> dict[str, Any]:
    """
    Args:
        row: of the table; {} where it has none.
        layers: that were run, and that the model has.
    """
    ran, all_layers = layers
    share = ran / all_layers
    bounds = {
        kind: row[f"seconds_{kind}"] * share if row else None
        for kind in ("least", "serial", "overlapped")
    }
    target = ""
    if serial := bounds["serial"]:
        target = f"bound {_milliseconds(serial)}: {seconds / serial:.3g} times that"
    if ran < all_layers:
        target += f"; {ran} of {all_layers} layers, and of the bound"
    return {
        **figure(name, 1e3 * seconds, "ms", target),
        "seconds": seconds,
        **{f"seconds_{kind}": bound for kind, bound in bounds.items()},
        "ratio": seconds / serial if serial else None,
        "layers": [ran, all_layers],
        "assumed": row.get("assumed", ""),
    }


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _seconds(job: Job, run: Any, program: Any) -> float:
    """Of one call of a program, its arguments and results on the device."""
    from benchmarks.gpu_inputs import arguments, filled

    lowered = program.lower()
    compiled = lowered.compile()
    leaves, tree = jax.tree.flatten(arguments(run, job.part, program, lowered))
    leaves = jax.block_until_ready([jnp.asarray(leaf) for leaf in leaves])

    def call() -> None:
        """Arguments that a call consumes are replaced by its results, as a run does it."""
        results = jax.tree.leaves(compiled(*jax.tree.unflatten(tree, leaves)))
        for index, leaf in enumerate(leaves):
            if leaf.is_deleted():
                same = (r for r in results if (r.shape, r.dtype) == (leaf.shape, leaf.dtype))
                found = next(same, None)
                leaves[index] = filled(leaf) if found is None else found
                results = [r for r in results if r is not leaves[index]]
        waiting[:] = results + leaves[-1:]

    waiting: list[Any] = []
    rounds, calls = [], 1
    for _ in range(ROUNDS + 1):
        since = time.perf_counter()
        for _ in range(calls):
            call()
        jax.block_until_ready((waiting, leaves))
        rounds.append((time.perf_counter() - since) / calls)
        calls = CALLS if rounds[-1] < MOMENT else 1
    return statistics.median(rounds[1:])


def _cut_to_fit(job: Job, run: Any) -> tuple[Any, tuple[int, int]]:
    """The run with as many layers as the device has memory for, but its pages as they were.

    Returns:
        It, and the layers that it has and had.
    """
    whole = run.model.num_layers
    stats = jax.devices()[0].memory_stats() or {}
    programs = list(_programs(job, run))
    most = max(program.held_bytes for program in programs)
    room = stats.get("bytes_limit", float("inf")) - SPARE_BYTES
    if most <= room or job.part != "engine":
        return run, (whole, whole)
    layers = max(1, int(whole * room / most))
    described, _ = programs[0].lower().args_info
    engine = replace(run.engine, num_pages=described[1][0].shape[0])
    run = replace(run, model=replace(run.model, num_layers=layers), engine=engine)
    return run, (layers, whole)


def _programs(job: Job, run: Any) -> Iterator[Any]:
    from benchmarks.h100 import engine, kernels, learner

    devices = jax.devices()[:1]
    if job.part == "learner":
        return learner.programs(run, devices, all_lengths=True)
    if job.part == "engine":
        return engine.programs(run, devices, job.attention)
    return kernels.programs(run, devices[0])


def _predicted(job: str) -> dict[str, dict[str, Any]]:
    """Rows of the table for a job, by program."""
    rows = json.loads(PREDICTED.read_text())["rows"] if PREDICTED.exists() else []
    return {row["program"]: row for row in rows if row["job"] == job and "failed" not in row}


def _run(job: Job, *, dry_run: bool) -> Any:
    from benchmarks.h100.checkpoints import run_of

    run = run_of(job.config, job.mesh)
    return _small(run) if dry_run else run


def _small(run: Any) -> Any:
    """A run of the same kind that any machine can do."""
    model = replace(
        run.model,
        vocab_size=128,
        embed_dim=32,
        num_layers=2,
        num_query_heads=2,
        num_key_heads=1,
        head_dim=16,
        hidden_dim=64,
        dtype="float32",
    )
    engine = replace(
        run.engine,
        slots=2,
        token_rows=64,
        num_pages=32,
        max_prompt_tokens=24,
        steps_per_dispatch=2,
        kv_dtype="float32",
    )
    return replace(
        run,
        model=model,
        engine=engine,
        learner=replace(run.learner, pack_tokens=0, pack_rows=2, row_tokens=32, row_lengths=1),
        sampling=replace(run.sampling, max_response_tokens=24),
        weights=replace(run.weights, rollout_dtype="float32"),
    )
