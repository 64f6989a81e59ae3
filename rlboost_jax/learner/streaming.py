"""One step as the learner lives it: wait, receive, have judged, train what is ready.

Rewards are computed elsewhere; an answer wakes the learner like a message does.

Rollouts that the learner's own log-probabilities contradict are sent back and generated again;
no gradient has been taken of them then.

While the reserved devices are seeding, finished groups pile up; once they have handed over
(`WindowClosed`) or nothing is left to generate, micro-batches are trained as they become
complete, with the rest still being generated elsewhere.
"""

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


@dataclass(frozen=True, kw_only=True)
class StreamTimes:
    """Wall seconds of one step's stream, from its begin to the last micro-batch."""

    waiting: float  # idle for want of a complete micro-batch, once the devices were free
    training: float  # inside `train`


def stream_step(
    link: Receiver,
    collector: StepCollector,
    micro_batches: MicroBatches,
    train: Callable[[int, tuple[Group, ...]], Sequence[Doubt]],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> StreamTimes:
    """Receive rollouts until the step is complete and call `train` once per micro-batch.

    Args:
        train: (micro-batch index, its groups) → what it doubts of them. Called in the order of
            completion; where it doubts anything it has kept nothing, and is called again.

    Raises:
        ManagerLost, ManagerNotStarted, WrongVersion: from the link and the collector.
        RewardWorkersLost: responses can no longer be judged.
    """
    ready: deque[MicroBatch] = deque()
    handed_over: float | None = None
    training = 0.0

    def begin(groups: Sequence[Group]) -> None:
        for group in groups:
            ready.extend(micro_batches.add(group))

    def take(message: messages.ToTrainer | None) -> None:
        nonlocal handed_over
        match message:
            case messages.FinishedRollout():
                begin(collector.add(message))
            case messages.WindowClosed(step=collector.step) if handed_over is None:
                handed_over = clock()

    while ready or not collector.complete:
        begin(collector.settle())
        free = handed_over is not None or collector.generated
        if not (ready and free):
            if not collector.complete:
                take(link.receive())  # or None, woken by an answer
            continue
        if handed_over is None:
            handed_over = clock()
        since = clock()
        index, groups = ready.popleft()
        doubts = train(index, groups)
        training += clock() - since
        if doubts:
            link.doubt(collector.step, doubts)
            collector.reject(doubt.sample for doubt in doubts)
            micro_batches.take_back(index, groups, {doubt.prompt for doubt in doubts})
        while (message := link.receive(timeout=0)) is not None:
            take(message)

    end = clock()
    handed_over = end if handed_over is None else handed_over
    return StreamTimes(
        waiting=max(0.0, end - handed_over - training),
        training=training,
    )
