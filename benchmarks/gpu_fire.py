"""Stage of gpu.py: a whole run on the device, calm and while its servers are killed."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_figures import Cases, Figure, figure
from rlboost_jax.observe.metrics import read_metrics

_UPDATES = 8
_BFLOAT16 = ("model.dtype", "engine.kv_dtype", "weights.rollout_dtype")
RUN_SECONDS = 300.0  # in which a run has to end
Rows = Sequence[dict[str, Any]]


def under_fire(*, tiny: bool, execute: Callable[..., Any] = subprocess.run) -> Cases:
    """`configs/tiny.py` in bfloat16 with heads of 64, which kernels for GPUs take.

    Its processes take what memory they need, beside what this one has.
    """
    run = cache(partial(_rows, tiny=tiny, execute=execute))
    name = f"configs/tiny.py in bfloat16, {_UPDATES} updates"
    return {
        f"{name}: equal digests, calm and under fire": lambda: _digests(run(False), run(True)),
        f"{name}: servers lost under fire": lambda: _summed(run(True), "instances_lost"),
        f"{name}: servers joined under fire": lambda: _summed(run(True), "instances_joined"),
        f"{name}: tokens trained on, calm": lambda: _rate(run(False)),
        f"{name}: the learner waits, calm": lambda: _idle(run(False)),
    }


def _rows(fire: bool, *, tiny: bool, execute: Callable[..., Any]) -> Rows:
    """What a run has written of its steps. Raises RuntimeError with the last line of one that
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        values = {"num_steps": _UPDATES, "model.head_dim": 64, "fleet.chaos.enabled": fire}
        values |= dict.fromkeys(_BFLOAT16, "bfloat16")
        command = [sys.executable, "-m", "rlboost_jax.main", "--config=configs/tiny.py"]
        command += [f"--workdir={folder}/run", "--dry_run" if tiny else "--nodry_run"]
        command += [f"--config.{name}={value}" for name, value in values.items()]
        process = execute(
            command,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        )
        if process.returncode:
            last = (process.stderr or process.stdout).strip().splitlines()[-1:]
            raise RuntimeError(f"a run ended with {process.returncode}: {' '.join(last)}")
        return read_metrics(Path(folder) / "run")


def _digests(calm: Rows, fire: Rows) -> Figure:
    if not calm:
        return figure("no steps", "", target="True")
    keys = ("trajectories_digest", "params_digest")
    pairs = [[[row[key] for key in keys] for row in rows] for rows in (calm, fire)]
    return figure(pairs[0] == pairs[1], "", target="True", digests=pairs[0])


def _summed(rows: Rows, key: str) -> Figure:
    return figure(sum(row[key] for row in rows), "")


def _rate(rows: Rows) -> Figure:
    """Return tokens per second over all steps but the first, in which servers start."""
    tokens = sum(row["tokens_delivered"] for row in rows[1:])
    seconds = sum(row["step_seconds"] for row in rows[1:])
    return figure(tokens / seconds if seconds else 0.0, "tokens/s")


def _idle(rows: Rows) -> Figure:
    waited = sum(row["train_wait_seconds"] for row in rows[1:])
    seconds = sum(row["step_seconds"] for row in rows[1:])
    return figure(waited / seconds if seconds else 0.0, "of the time")
