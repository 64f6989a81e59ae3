"""Conditions for applying an update: it is complete, finite, and within the run's guards.

An update that is not ends the run before anything of it is kept: the parameters and the last
checkpoint are those before the step. None is skipped: the parameters of step s have been updated
s times, and a run that quietly trains on less than was asked for is worse than one that stops.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.learner_config import LearnerConfig

MOST_NAMED: Final = 4  # samples in a message
_ROUNDING: Final = 2.0**-20  # of a float32 sum of ones, relative; exact below 2^24 tokens


class StepNotWhole(RuntimeError):
    """An update lacks a sample of its step, has one twice, or has a foreign one."""


class RewardsFailed(Mistake, RuntimeError):
    """More responses could not be judged than an update tolerates."""


class NotFinite(Mistake, RuntimeError):
    """An update has a loss or gradient that is not a number; nothing of it was applied."""


class GuardTripped(Mistake, RuntimeError):
    """An update is beyond a guard of the configuration; nothing of it was applied."""


def check_whole(
    trajectories: Sequence[Trajectory],
    *,
    step: int,
    version: int,
    prompts: Collection[int],
    group_size: int,
) -> None:
    """Raise StepNotWhole unless each sample of these prompts is there once, all of the version."""
    times = Counter((t.prompt, t.sample) for t in trajectories)
    wanted = {(p, p * group_size + place) for p in prompts for place in range(group_size)}
    faults = {
        "missing": [sample for _, sample in sorted(wanted - times.keys())],
        "foreign": [sample for _, sample in sorted(times.keys() - wanted)],
        "twice or more": [sample for (_, sample), n in sorted(times.items()) if n > 1],
        "of another version": [t.sample for t in trajectories if _versions(t) - {version}],
    }
    found = [f"{fault}: {_samples(samples)}" for fault, samples in faults.items() if samples]
    if found:
        raise StepNotWhole(
            f"step {step} of {len(prompts)} x {group_size} samples cannot be applied: "
            f"{'; '.join(found)}"
        )


def check_judged(
    trajectories: Sequence[Trajectory],
    *,
    step: int,
    tolerated: float,
    checkpoint: Callable[[], int | None],
) -> None:
    """Raise RewardsFailed if more than this share of the responses have no proper reward."""
    failed = [t for t in trajectories if t.verdict.faults]
    if len(failed) > tolerated * len(trajectories):
        name, why = next(iter(failed[0].verdict.faults.items()))
        raise RewardsFailed(
            f"step {step}: reward functions failed for {len(failed)} of {len(trajectories)} "
            f"responses, rewards.tolerated_failures allows {tolerated:g} of them; {name!r} for "
            f"sample {failed[0].sample}: {why}; {kept(checkpoint())}"
        )


def check_counted(trajectories: Iterable[Trajectory], tokens: float, *, step: int) -> None:
    """Raise StepNotWhole unless the gradients cover exactly the sampled tokens of these.

    Args:
        tokens: that the gradients' micro-batches counted, a float32 sum.
    """
    expected = sum(t.num_sampled for t in trajectories)
    if not abs(tokens - expected) <= expected * _ROUNDING:
        raise StepNotWhole(
            f"step {step} cannot be applied: its gradients are of {tokens:.0f} sampled tokens, "
            f"its samples have {expected}"
        )


def check_guards(
    learner: LearnerConfig,
    measured: Mapping[str, float],
    *,
    step: int,
    checkpoint: Callable[[], int | None],
    whose: str = "",
) -> None:
    """Raise GuardTripped for the first value beyond its guard.

    Args:
        measured: any of `gradient_norm` and `kl` (nats per token).
        checkpoint: tells the last complete one.
        whose: "the critic's ", or "" for the policy's.
    """
    for name, value in measured.items():
        guard = getattr(learner, f"guard_{name}")
        if guard and value > guard:
            raise GuardTripped(
                f"step {step}: {whose}{name} is {value:.4g}, learner.guard_{name} allows "
                f"{guard:g}; {kept(checkpoint())}: raise the guard to go on from there, or lower "
                "learner.learning_rate in a new --workdir"
            )


def kept(checkpoint: int | None) -> str:
    if checkpoint is None:
        return "nothing of it was applied, and there is no checkpoint yet"
    return f"nothing of it was applied, and checkpoint {checkpoint} is sound"


def _versions(trajectory: Trajectory) -> set[int]:
    return {version for sequence in trajectory.sequences for version, _ in sequence.versions}


def _samples(samples: Sequence[int]) -> str:
    shown = ", ".join(map(str, samples[:MOST_NAMED]))
    more = len(samples) - MOST_NAMED
    return f"sample{'s' * (len(samples) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")
