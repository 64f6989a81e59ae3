"""The learner's schedule: micro-batches in the order in which their groups are complete."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Batch = tuple[float, float]  # when its groups are complete, seconds of training it


@dataclass(frozen=True, kw_only=True)
class LearnerPace:
    """How the learner forms micro-batches of groups, and its seconds for them."""

    seconds_per_token: float
    micro_batch_groups: int
    fixed: bool  # micro-batches are made up beforehand, in the order of groups


def micro_batches(
    learner: LearnerPace, tokens: Sequence[float], complete: Iterable[tuple[float, int]]
) -> list[Batch]:
    """Micro-batches in the order in which they are trained.

    Args:
        tokens: of each group, prompts included.
        complete: (seconds, group), each group once.
    """
    key = operator.itemgetter(1) if learner.fixed else None
    groups = sorted(complete, key=key)
    size = learner.micro_batch_groups
    batches = [groups[first : first + size] for first in range(0, len(groups), size)]
    return sorted(
        (
            max(at for at, _ in batch),
            learner.seconds_per_token * sum(tokens[group] for _, group in batch),
        )
        for batch in batches
    )


def without_waits(batches: Sequence[Batch]) -> tuple[float, float]:
    """Earliest start from which the learner never waits, and the completion time that bounds it.

    The second is when the batch is complete on which the start depends.
    """
    begin, critical, work = 0.0, 0.0, 0.0
    for ready, seconds in batches:
        if ready - work > begin:
            begin, critical = ready - work, ready
        work += seconds
    return begin, critical


def train(batches: Sequence[Batch], begin: float) -> tuple[float, float]:
    """Seconds that a learner starting at `begin` waits, and when it has trained everything."""
    wait, clock = 0.0, begin
    for ready, seconds in batches:
        wait += max(0.0, ready - clock)
        clock = max(clock, ready) + seconds
    return wait, clock
