"""Which responses of a step a person is shown, how they read, what their rewards are made of."""

from collections import abc
from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from numpy.typing import ArrayLike

from rlboost_jax.learner.trajectory import Trajectory
from rlboost_jax.observe.samples import SampleRow
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.observe import ObserveConfig


@runtime_checkable
class Reader(Protocol):
    """What is needed of `rlboost_jax.data.tasks.Task`."""

    @property
    def stop_ids(self) -> abc.Sequence[int]: ...

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
            prompt_text=task.text(t.sequence.prompt),
            response_text=task.text(t.sequence.continuation),
            tokens=t.sequence.num_sampled,
            cut_off=not stopped(t.sequence.sampled_tokens, task.stop_ids),
            reward=t.reward,
            advantage=float(t.advantage if t.advantages is None else t.advantages.mean()),
            rewards=_parts(t),
            turns=_turns(t.sequence, task),
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


def _turns(sequence: Sequence, task: Reader) -> tuple[tuple[str, str], ...]:
    """Of a response that somebody else wrote a part of; () of any other."""
    if len(sequence.runs) <= 2:
        return ()
    _, *runs = sequence.split()
    return tuple(("sampled" if run.sampled else "given", task.text(run.tokens)) for run in runs)


def _parts(trajectory: Trajectory) -> Mapping[str, float]:
    """What a reward of several functions is made of."""
    parts = trajectory.reward_components
    return dict(parts) if len(parts) > 1 else {}
