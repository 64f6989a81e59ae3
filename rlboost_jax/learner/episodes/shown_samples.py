"""Sample responses of a step for people, as text with the parts of their rewards."""

from collections import abc
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.observe.samples import SampleCall, SamplePart, SampleRow
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.settings.observe_config import ObserveConfig


@runtime_checkable
class ResponseReader(Protocol):
    """Part of `rlboost_jax.data.tasks.Task` that is needed here."""

    @property
    def stop_ids(self) -> abc.Sequence[int]: ...

    @property
    def stops(self) -> bytes: ...

    def text(self, tokens: ArrayLike, /) -> str: ...


def samples_due(observe: ObserveConfig, step: int) -> bool:
    every = observe.samples_every_steps
    return every > 0 and step % every == 0


def sample_rows(
    step: int, trajectories: Iterable[Trajectory], *, task: ResponseReader, num_prompts: int
) -> tuple[SampleRow, ...]:
    """Rows for the whole groups of the step's first prompts.

    Prompts come shuffled by the run's seed, so the first are as good as any, and the same
    whatever the fleet did.

    Args:
        trajectories: of the step, in (prompt, sample) order.
    """
    everyone = tuple(trajectories)
    shown = list(dict.fromkeys(t.prompt for t in everyone))[:num_prompts]
    return tuple(
        SampleRow(
            step=step,
            prompt=t.prompt,
            sample=t.sample,
            prompt_text=task.text(t.sequence.prompt),
            response_text=task.text(t.response),
            tokens=t.num_sampled,
            cut_off=not stopped(t.sequences[-1].newest_turn, task.stop_ids, task.stops),
            reward=t.reward,
            advantage=float(t.advantage if t.advantages is None else t.advantages.mean()),
            rewards=_parts(t),
            turns=_parts_of(t, task),
            trained=t.trained,
            left_out=t.left_out,
        )
        for t in everyone
        if t.prompt in shown
    )


def reward_parts(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Keys of a row of metrics, `reward/NAME`: the mean that each reward function gave.

    Empty where there is only one, which `reward_mean` tells of.
    """
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in _parts(trajectory).items():
            values.setdefault(name, []).append(value)
    return {f"reward/{name}": sum(given) / len(given) for name, given in values.items()}


def _parts_of(t: Trajectory, task: ResponseReader) -> tuple[SamplePart, ...]:
    """Parts of a response with given text or tool calls; () for any other."""
    if len(t.sequence.runs) <= 2 and not (t.later or t.verdict.account.calls):
        return ()
    parts: list[SamplePart] = []
    ends = np.cumsum(t.turns)
    turn = 0
    for place, sequence in enumerate(t.sequences):
        runs = list(sequence.split())
        for run in runs if place else runs[1:]:  # the first prompt is shown by itself
            part = SamplePart(sampled=run.sampled, text=task.text(run.tokens), sequence=place)
            if run.sampled:
                part = replace(part, **_of_turn(t, turn, ends))
                turn += 1
            parts.append(part)
    return tuple(parts)


def _of_turn(t: Trajectory, turn: int, ends: NDArray[np.int_]) -> dict[str, Any]:
    """Fields of a turn other than its text."""
    advantage = t.advantage
    if t.advantages is not None:
        advantage = float(t.advantages[ends[turn] - t.turns[turn] : ends[turn]].mean())
    return {
        "turn": turn,
        "reward": t.verdict.turn_rewards[turn] if t.verdict.turn_rewards else None,
        "advantage": advantage if t.trained else None,
        "calls": tuple(
            SampleCall(name=call.name, failed=call.failed)
            for call in t.verdict.account.calls
            if call.turn == turn
        ),
    }


def _parts(trajectory: Trajectory) -> Mapping[str, float]:
    """Parts of a reward that several functions gave."""
    parts = trajectory.verdict.components
    return dict(parts) if len(parts) > 1 else {}
