"""What a checkpoint at the end of each step costs the steps.

    python -m benchmarks.checkpoints [--steps=40] [--step_seconds=0.7] [--sync_ms=20]

The train state of `configs/quickstart.py` is saved after each of many steps: products on all cores,
some dozens of dispatches, for `--step_seconds` on a quiet machine. In turns within one run, step by
step: no checkpoint; *before*, Orbax's own manager, two kept, nothing forced to the disk and no
digests; *after*, ours, durable, with digests, read back; *slow disk*, the same where each sync
takes longer by `--sync_ms`. Medians:

held       milliseconds that the step's thread is held by `save`
step       its time from one end to the next, against a step without a checkpoint
cpu        milliseconds of all threads' that a save takes on a core
"""

import argparse
import itertools
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from configs import quickstart
from rlboost_jax.learner.checkpoints import leaf_digests
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.state import init_state, make_optimizer, state_shardings
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params
from rlboost_jax.settings.config_loading import run_config

WIDTH = 512  # of the products
DISPATCHES = 40  # of a step
WARM = 3  # turns that do not count


def quickstart_state() -> Any:
    """Make a train state of the quickstart, with moments that are not all zero."""
    run, mesh = run_config(quickstart.get_config()), make_mesh((1, 1, 1))
    optimizer = make_optimizer(run.learner, run.num_updates)
    state = init_state(
        init_params(run.model, 0), optimizer, state_shardings(run.model, optimizer, mesh)
    )
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jax.device_put(
            rng.standard_normal(leaf.shape).astype(leaf.dtype), leaf.sharding
        ),
        state,
    )


class Before:
    """As it was: Orbax's manager."""

    def __init__(self, folder: Path) -> None:
        self._manager = ocp.CheckpointManager(
            folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)
        )

    def save(self, step: int, state: Any, extra: dict[str, Any]) -> None:
        self._manager.wait_until_finished()
        arrays = ocp.args.StandardSave(state)
        self._manager.save(
            step, args=ocp.args.Composite(state=arrays, extra=ocp.args.JsonSave(extra))
        )

    def wait(self) -> None:
        self._manager.wait_until_finished()


def slowly(sync: Callable[[int], None], seconds: float) -> Callable[[int], None]:
    def slow(descriptor: int) -> None:
        time.sleep(seconds)
        sync(descriptor)

    return slow


def work(dispatches: int) -> None:
    matrix = jnp.full((WIDTH, WIDTH), 1e-3)
    for _ in range(dispatches):
        matrix = _product(matrix)
    matrix.block_until_ready()


@jax.jit
def _product(matrix: jax.Array) -> jax.Array:
    for _ in range(8):
        matrix = jnp.tanh(matrix @ matrix)
    return matrix


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="of each turn")
    parser.add_argument("--step_seconds", type=float, default=0.7)
    parser.add_argument("--sync_ms", type=float, default=20.0)
    chosen = parser.parse_args(argv)
    state, sync = quickstart_state(), os.fsync
    work(DISPATCHES)
    since = time.perf_counter()
    work(DISPATCHES)
    dispatches = round(DISPATCHES * chosen.step_seconds / (time.perf_counter() - since))
    with tempfile.TemporaryDirectory() as folder:
        turns: dict[str, Any] = {"none": None, "before": Before(Path(folder) / "before")}
        for name in ("after", "slow disk"):
            turns[name] = Checkpoints(Path(folder) / name, keep=2)
        held: dict[str, list[float]] = {name: [] for name in turns}
        steps: dict[str, list[float]] = {name: [] for name in turns}
        cpu: dict[str, list[float]] = {name: [] for name in turns}
        for number, name in itertools.product(range(chosen.steps + WARM), turns):
            os.fsync = slowly(sync, chosen.sync_ms / 1000) if name == "slow disk" else sync
            began, used = time.perf_counter(), cpu_seconds()
            if turns[name] is not None:
                turns[name].save(number, state, {})
            held[name].append(time.perf_counter() - began)
            work(dispatches)
            steps[name].append(time.perf_counter() - began)
            if turns[name] is not None:
                turns[name].wait()
            cpu[name].append(cpu_seconds() - used)
        os.fsync = sync
    alone, used = statistics.median(steps["none"][WARM:]), statistics.median(cpu["none"][WARM:])
    print(f"a step without a checkpoint: {alone:.3f} s, {used:.3f} s of all cores")
    print("| | held ms | held % of a step | step % longer | cpu ms |")
    print("|---|--:|--:|--:|--:|")
    for name in ("before", "after", "slow disk"):
        hold, step = (statistics.median(each[name][WARM:]) for each in (held, steps))
        more = statistics.median(cpu[name][WARM:]) - used
        shares = f"{100 * hold / alone:.1f} | {100 * (step / alone - 1):.1f}"
        print(f"| {name} | {1000 * hold:.1f} | {shares} | {1000 * more:.0f} |")
    began = time.perf_counter()
    leaf_digests.parts_of(jax.tree.map(leaf_digests.on_host, state))()
    seconds = time.perf_counter() - began
    print(
        f"digests of all leaves: {1000 * seconds:.1f} ms, {100 * seconds / alone:.1f} % of a step"
    )


if __name__ == "__main__":
    main()
