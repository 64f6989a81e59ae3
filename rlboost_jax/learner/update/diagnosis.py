"""Diagnosis of a gradient that is not finite: micro-batches, then samples, computed again."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import optax

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.guards import MOST_NAMED

Gradients = Callable[[Sequence[Trajectory]], tuple[Any, Any]]  # trajectories → (gradients, sums)


def culprits(
    trajectories: Sequence[Trajectory], gradients: Gradients, *, micro_batch_prompts: int
) -> str:
    """Describe the source. Costs the step's gradients once more, and a program call per suspect.

    Args:
        trajectories: of the step, in (prompt, sample) order.
        gradients: with the parameters that the update was computed from.
    """
    unrewarded = [t for t in trajectories if not math.isfinite(t.reward)]
    if unrewarded:  # their groups' advantages are not finite either: nothing else is to blame
        return f"the reward is not finite of {_named(unrewarded)}"
    last = max(t.prompt for t in trajectories)
    bad_batches: list[int] = []
    bad_samples: list[Trajectory] = []
    for index in range(last // micro_batch_prompts + 1):
        members = [t for t in trajectories if t.prompt // micro_batch_prompts == index]
        if not members or _finite(gradients(members)):  # dynamic sampling leaves prompts out
            continue
        bad_batches.append(index)
        if len(bad_samples) <= MOST_NAMED:
            bad_samples += [t for t in members if not _finite(gradients([t]))]
    if not bad_batches:
        return "each micro-batch by itself is finite, their sum is not"
    shown = ", ".join(map(str, bad_batches[:MOST_NAMED]))
    return f"micro-batches {shown} of {index + 1}: {_named(bad_samples) or 'no sample alone'}"


def _finite(part: tuple[Any, Any]) -> bool:
    gradients, sums = part
    return math.isfinite(float(sums["loss"])) and math.isfinite(float(optax.tree.norm(gradients)))


def _named(trajectories: Sequence[Trajectory]) -> str:
    shown = [
        f"sample {t.sample} (prompt {t.prompt}, {t.num_sampled} tokens, "
        f"reward {t.reward:g}, advantage {t.advantage:.3g})"
        for t in trajectories[:MOST_NAMED]
    ]
    more = len(trajectories) - MOST_NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
