"""Supervised fine-tuning on the rows of `warmup.source`, by the learner's own programs.

The loss is the mean of the targets' negative log-probabilities: that of REINFORCE with advantages
of 1 and the softmax at temperature 1. Packing, adapters, meshes and memory are as in the updates
that follow; the optimizer is the run's, with a learning rate of its own and fresh moments.

Everything follows from the seed and the rows. A run that is stopped before its first checkpoint
begins its supervised updates anew, and ends them with the same bits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import jax
import numpy as np
from jax.sharding import Mesh

from rlboost_jax.data.demonstrations import Demonstrations, Runs
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.guards import NotFinite
from rlboost_jax.learner.packing import pack, update_divisor
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.setup.lessons import lessons_seed, taught
from rlboost_jax.learner.state import init_state
from rlboost_jax.models.params import Params
from rlboost_jax.observe.history import WARMUP
from rlboost_jax.observe.json_lines import StepLines
from rlboost_jax.settings.run_config import RunConfig

MOST_RISING: Final = 20  # updates
RISING_SHARE: Final = 0.1  # of all updates
MOST_NOTES: Final = 20  # lines on the console


def fine_tuned(
    run: RunConfig,
    demonstrations: Demonstrations,
    params: Params,
    *,
    base: Params | None,
    mesh: Mesh,
    folder: Path,
    note: Callable[[str], None],
    beat: Callable[[], None] = lambda: None,
) -> Params:
    """Return the parameters after `warmup.source_epochs` passes over the rows.

    Every process of a trainer does this; the first writes `warmup.jsonl`, a line per update.

    Args:
        params: parameters to start from, whose buffers are consumed; of a run with adapters, the
            adapters.
        base: parameters that adapters are added to; None without adapters.
        folder: the run's.
        note: shows a line on the console.
        beat: called after each update, as a sign of progress.

    Raises:
        NotFinite: a loss or a gradient is not finite.
    """
    sequences = demonstrations.sequences
    updates = _updates(run, [sum(map(len, runs)) - 1 for runs in sequences])
    policy = _programs(run, len(updates), mesh)
    if base is not None:
        policy = policy.over(base)
    state = init_state(params, policy.optimizer, policy.shardings, consume=True)
    every = math.ceil(len(updates) / MOST_NOTES)
    rows = StepLines(folder / WARMUP) if jax.process_index() == 0 else None
    try:
        for update, chosen in enumerate(updates):
            members = [_trajectory(index, sequences[index]) for index in chosen]
            batches = pack(
                members,
                rows=run.pack_rows,
                row_tokens=run.row_tokens,
                row_lengths=run.learner.row_lengths,
                loss_aggregation="token_mean",
            )
            tokens = update_divisor(members, "token_mean")
            gradients, sums = policy.accumulate(state.params, None, batches)
            state, applied = policy.apply(state, gradients, np.float32(tokens))
            loss = float(sums["loss"]) / tokens
            if not (applied["finite"] and math.isfinite(loss)):
                raise NotFinite(
                    f"supervised update {update + 1}: its gradient is not finite (loss "
                    f"{loss:.4g}); lower warmup.source_learning_rate"
                )
            beat()
            if rows is not None:
                rows.write([{"step": update, "loss": loss, "tokens": tokens, **_floats(applied)}])
            if (update + 1) % every == 0 or update + 1 == len(updates):
                note(
                    f"  supervised update {update + 1}/{len(updates)}: loss {loss:.3f} nats per "
                    "token"
                )
    finally:
        if rows is not None:
            rows.close()
    return state.params


def _updates(run: RunConfig, positions: Sequence[int]) -> list[list[int]]:
    """Rows of each update: every epoch in its own order, cut where an update is full."""
    rng = np.random.default_rng(lessons_seed(run))
    updates: list[list[int]] = []
    for _ in range(run.warmup.source_epochs):
        room = 0
        for index in rng.permutation(len(positions)).tolist():
            if positions[index] > room:
                updates.append([])
                room = max(run.warmup.source_batch_tokens, positions[index])
            updates[-1].append(index)
            room -= positions[index]
    return updates


def _programs(run: RunConfig, num_updates: int, mesh: Mesh) -> PolicyPrograms:
    rising = min(MOST_RISING, math.ceil(RISING_SHARE * num_updates))
    return PolicyPrograms(
        run.model,
        replace(
            run.learner,
            learning_rate=run.warmup.source_learning_rate,
            schedule="linear",
            schedule_warmup_steps=rising,
        ),
        replace(
            run.algorithm,
            surrogate="reinforce",
            ratio_level="token",
            old_policy="behaviour",
            correction="none",
            dual_clip=0.0,
            kl_coefficient=0.0,
            entropy_coefficient=0.0,
            lag=0,
            mini_batches=1,
            epochs=1,
            routing_replay=False,
        ),
        replace(run.sampling, temperature=1.0, top_p=1.0, top_k=0),
        num_updates=num_updates,
        mesh=mesh,
    )


def _trajectory(index: int, runs: Runs) -> Trajectory:
    return Trajectory(prompt=index, sample=index, sequence=taught(runs), advantage=1.0)


def _floats(applied: dict[str, jax.Array]) -> dict[str, float]:
    return {name: float(applied[name]) for name in ("gradient_norm", "learning_rate")}
