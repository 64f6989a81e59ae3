"""One step as the learner lives it: wait, receive, have judged, train what is ready.

Rewards are computed elsewhere; an answer wakes the learner like a message does.

Rollouts that the learner's own log-probabilities contradict are sent back and generated again;
no gradient has been taken of them then.

While the reserved devices are seeding, finished groups pile up; once they have handed over
(`WindowClosed`) or nothing is left to generate, the batch is chosen from them and micro-batches
are trained as they become complete, with the rest still being generated elsewhere.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rlboost_jax import messages
from rlboost_jax.learner.collector import StepCollector
from rlboost_jax.learner.micro_batches import MicroBatch, MicroBatches
from rlboost_jax.learner.trajectory import Group


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A response of which one token at least was not sampled as is said."""

    prompt: int
    sample: int
    attempt: int
    position: int  # in the response, of the first such token
    gap: float  # nats between the two log-probabilities, the largest in the response


@runtime_checkable
class Receiver(Protocol):
    """What is needed of `ManagerLink`."""

    def receive(self, timeout: float | None = None) -> messages.ToTrainer | None: ...
    def doubt(self, step: int, doubts: Sequence[Doubt]) -> None: ...


Members = list[Group]  # each numbered by its place in the batch


@runtime_checkable
class Selection(Protocol):
    """Which groups make up the batch: see `selection.py`."""

    @property
    def complete(self) -> bool:
        """Whether every member of the batch is known."""
        ...

    def take(self, group: Group, /) -> tuple[Members, Sequence[Doubt]]:
        """The members that are certain because of a finished group; or what is doubted of it,
        which then is forgotten here and comes again."""
        ...


@runtime_checkable
class Beside(Protocol):
    """Responses that are generated with the step and not trained on: a `Measurement`."""

    @property
    def complete(self) -> bool: ...
    def take(self, rollout: messages.FinishedRollout, /) -> bool: ...
    def withdraw(self, withdrawn: messages.Withdrawn, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class StreamTimes:
    """Wall seconds of one step's stream, from its begin to the last micro-batch."""

    waiting: float  # idle for want of a complete micro-batch, once the devices were free
    training: float  # inside `train`, and looking at groups that may make up the batch


def stream_step(
    link: Receiver,
    collector: StepCollector,
    selection: Selection,
    micro_batches: MicroBatches,
    train: Callable[[int, tuple[Group, ...]], Sequence[Doubt]],
    *,
    beside: Beside | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> StreamTimes:
    """Receive rollouts until the batch is complete and call `train` once per micro-batch.

    Args:
        selection: of the groups that make up the batch.
        beside: is waited for as well, in no one's time.
        train: (micro-batch index, its groups) → what it doubts of them. Called in the order of
            completion; where it doubts anything it has kept nothing, and is called again.

    Raises:
        ManagerLost, ManagerNotStarted, WrongVersion: from the link and the collector.
        RewardWorkersLost: responses can no longer be judged.
    """
    finished: deque[Group] = deque()  # that `selection` has not seen
    ready: deque[MicroBatch] = deque()
    handed_over: float | None = None
    training = 0.0

    def reject(doubts: Sequence[Doubt]) -> None:
        if doubts:
            link.doubt(collector.step, doubts)
            collector.reject(doubt.sample for doubt in doubts)

    def choose(group: Group) -> None:
        members, doubts = selection.take(group)
        reject(doubts)
        for member in members:
            ready.extend(micro_batches.add(member))

    def train_on(index: int, groups: tuple[Group, ...]) -> None:
        doubts = train(index, groups)
        if doubts:
            reject(doubts)
            micro_batches.take_back(index, groups, {doubt.prompt for doubt in doubts})

    def take(message: messages.ToTrainer | None) -> None:
        nonlocal handed_over
        match message:
            case messages.FinishedRollout():
                if beside is None or not beside.take(message):
                    finished.extend(collector.add(message))
            case messages.Withdrawn() if beside is not None:
                beside.withdraw(message)
            case messages.WindowClosed(step=collector.step) if handed_over is None:
                handed_over = clock()

    def missing() -> bool:
        return not selection.complete or not (beside is None or beside.complete)

    end = math.nan  # of the last micro-batch
    while finished or ready or missing():
        finished.extend(collector.settle())
        free = handed_over is not None or collector.generated or selection.complete
        if not (free and (finished or ready)):
            if missing():
                take(link.receive())  # or None, woken by an answer
            continue
        since = clock()
        if handed_over is None:
            handed_over = since
        if finished:  # first, for it may want more prompts generated meanwhile
            choose(finished.popleft())
            training += clock() - since
            continue
        train_on(*ready.popleft())
        end = clock()
        training += end - since
        while (message := link.receive(timeout=0)) is not None:
            take(message)

    handed_over = end if handed_over is None else handed_over
    return StreamTimes(
        waiting=max(0.0, end - handed_over - training),
        training=training,
    )
