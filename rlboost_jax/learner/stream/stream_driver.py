"""The learner's step in real time: wait, receive, have judged, train what is ready.

What is next is decided by `step_stream.py`; here it is done, and timed. Rewards are computed
elsewhere; an answer wakes the learner like a message does.

Rollouts that the learner's own log-probabilities contradict are sent back and generated again;
no gradient has been taken of them then.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, assert_never, runtime_checkable

from rlboost_jax import messages
from rlboost_jax.learner.episodes.collector import StepCollector
from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.stream.step_stream import (
    Asked,
    Check,
    CheckHeldout,
    DoubtedResponse,
    Extend,
    Resample,
    StepStream,
    StreamTimes,
    TakeDevices,
    Train,
    Update,
    Wait,
)
from rlboost_jax.sequences.identities import Batch


@runtime_checkable
class Receiver(Protocol):
    """Part of `ManagerLink` that is needed here."""

    def receive(self, timeout: float | None = None) -> messages.ToTrainer | None: ...
    def doubt(self, batch: Batch, doubts: Sequence[DoubtedResponse]) -> None: ...


@runtime_checkable
class Measured(Protocol):
    """Responses that are generated and not trained on: a `Measurement`."""

    @property
    def complete(self) -> bool: ...
    @property
    def check_due(self) -> bool: ...
    def take(self, rollout: messages.FinishedRollout, /) -> bool: ...
    def withdraw(self, withdrawn: messages.ResponsesWithdrawn, /) -> None: ...
    def take_unchecked(self) -> Group: ...
    def reject(self, samples: Iterable[int], /) -> None: ...


class BatchIntake:
    """Passes messages to one batch's stream and collector, whichever batch is being trained on.

    Messages of another batch change nothing, so each open batch may be given every message.
    """

    def __init__(
        self, stream: StepStream, collector: StepCollector, measured: Measured | None = None
    ) -> None:
        """
        Args:
            measured: takes the responses that are its own.
        """
        self.stream, self.collector, self.measured = stream, collector, measured

    def take(self, message: messages.ToTrainer) -> None:
        """Process a message. Raises WrongVersion."""
        if self.measured is not None and _measures(self.measured, message):
            return
        match message:
            case messages.FinishedRollout() if self.stream.arrived(message):
                for group in self.collector.add(message):
                    self.stream.finished(group)
            case messages.WindowClosed():
                self.stream.window_closed(message)

    def settle(self) -> None:
        """Take the rewards that have arrived; raises whatever keeps them from arriving."""
        for group in self.collector.settle():
            self.stream.finished(group)


def drive(
    batch: BatchIntake,
    link: Receiver,
    *,
    train: Callable[[int, tuple[Group, ...]], Sequence[DoubtedResponse]],
    check: Callable[[tuple[Group, ...]], Sequence[DoubtedResponse]] = lambda groups: (),
    check_heldout: Callable[[tuple[Group, ...]], Sequence[DoubtedResponse]] = lambda groups: (),
    extend: Callable[[range], None] = lambda places: None,
    ahead: Sequence[BatchIntake] = (),
    waited: Callable[[messages.ToTrainer | None], None] = lambda message: None,
    clock: Callable[[], float] = time.perf_counter,
) -> StreamTimes:
    """Receive rollouts and carry out the stream's decisions until the update can be made.

    Args:
        batch: that is trained on; its stream has begun.
        train: (micro-batch index, its groups) → what it doubts of them. Called in the order of
            completion; where it doubts anything it has kept nothing, and is called again.
        check: what is disputed of groups that are not trained on yet.
        check_heldout: the same of responses that are measured, which make one group at a time.
        extend: has more prompts generated, named by their places from the step's cursor.
        ahead: of the batches that are open besides, and trained on later.
        waited: called with what each wait has brought.

    Raises:
        ManagerLost, ManagerNotStarted, WrongVersion: from the link and the collector.
        WorkersLost: responses can no longer be judged.
    """
    times, stream = StreamTimes(), batch.stream
    intakes = (batch, *ahead)

    def take(message: messages.ToTrainer | None) -> None:
        if message is not None:
            for intake in intakes:
                intake.take(message)

    def ask(asked: Asked) -> None:
        for each in asked:
            match each:
                case Extend(places):
                    extend(places)
                case Resample(doubts):
                    link.doubt(Batch(stream.step), doubts)
                    batch.collector.reject(doubt.sample for doubt in doubts)
                case _:
                    assert_never(each)

    while True:
        for intake in intakes:
            intake.settle()
        since = clock()
        match stream.next():
            case Wait():
                waited(message := link.receive())  # or None, woken by an answer
                take(message)
            case TakeDevices():
                times.took_devices(since)
                stream.took_devices()
            case Check(group):
                ask(stream.checked(group, check((group,))))
                times.worked((now := clock()) - since, now)
            case CheckHeldout():
                assert batch.measured is not None
                _check_heldout(batch.measured, link, Batch(stream.step), check_heldout)
                times.worked_aside(clock() - since)
            case Train(index, groups):
                ask(stream.trained(index, groups, train(index, groups)))
                times.worked((now := clock()) - since, now)
                while (message := link.receive(timeout=0.0)) is not None:
                    take(message)
            case Update():
                return times
            case unknown:
                assert_never(unknown)


def drive_measurement(
    measured: Measured,
    link: Receiver,
    *,
    number: Batch,
    check: Callable[[tuple[Group, ...]], Sequence[DoubtedResponse]] = lambda groups: (),
    waited: Callable[[messages.ToTrainer | None], None] = lambda message: None,
) -> None:
    """Receive a whole batch without training on it.

    Args:
        number: of the batch.
        check: what is disputed of its responses, once engines no longer need the devices.
        waited: called with what each wait has brought.

    Raises:
        ManagerLost, ManagerNotStarted, WrongVersion: from the link and the measurement.
    """
    while not measured.complete or measured.check_due:
        if measured.complete:
            _check_heldout(measured, link, number, check)
            continue
        waited(message := link.receive())
        if message is not None:
            _measures(measured, message)


def _measures(measured: Measured, message: messages.ToTrainer) -> bool:
    """Process a message; return whether it was a response to measure. Raises WrongVersion."""
    match message:
        case messages.FinishedRollout():
            return measured.take(message)
        case messages.ResponsesWithdrawn():
            measured.withdraw(message)
    return False


def _check_heldout(
    measured: Measured,
    link: Receiver,
    number: Batch,
    check: Callable[[tuple[Group, ...]], Sequence[DoubtedResponse]],
) -> None:
    doubts = check((measured.take_unchecked(),))
    if doubts:
        link.doubt(number, doubts)
        measured.reject(doubt.sample for doubt in doubts)
