"""Which responses of a step a person is shown, how they read, what their rewards are made of."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from numpy.typing import ArrayLike

from rlboost_jax.learner.trajectory import Trajectory
from rlboost_jax.observe.samples import SampleRow
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.settings.observe import ObserveConfig


@runtime_checkable
class Reader(Protocol):
    """What is needed of `rlboost_jax.data.tasks.Task`."""

    @property
    def stop_ids(self) -> Sequence[int]: ...

    def text(self, tokens: ArrayLike, /) -> str: ...


def samples_due(observe: ObserveConfig, step: int) -> bool:
    every = observe.samples_every_steps
    return every > 0 and step % every == 0


def sample_rows(
    step: int, trajectories: Iterable[Trajectory], *, task: Reader, num_prompts: int
) -> tuple[SampleRow, ...]:
    """The whole groups of the step's first prompts.

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
            prompt_text=task.text(t.prompt_tokens),
            response_text=task.text(t.response_tokens),
            tokens=len(t.response_tokens),
            cut_off=not stopped(t.response_tokens, task.stop_ids),
            reward=t.reward,
            advantage=float(t.advantage if t.advantages is None else t.advantages.mean()),
            rewards=_parts(t),
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


def _parts(trajectory: Trajectory) -> Mapping[str, float]:
    """What a reward of several functions is made of."""
    parts = trajectory.reward_components
    return dict(parts) if len(parts) > 1 else {}
