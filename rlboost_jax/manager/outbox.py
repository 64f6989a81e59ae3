"""Where the parts of the manager leave what they want done."""

from collections.abc import Collection, Set
from typing import Any

from rlboost_jax.manager.events import (
    Action,
    Append,
    Close,
    Exit,
    Record,
    Request,
    Send,
    Terminate,
)
from rlboost_jax.manager.journal import Entry
from rlboost_jax.messages import (
    FinishedRollout,
    Parked,
    ToServer,
    ToTrainer,
    WindowClosed,
    Withdrawn,
)


class Outbox:
    """Actions in the order in which they were decided, behind what must be durable first."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._entries: list[Entry] = []
        self.trainer: int | None = None  # its stream
        # By open batch, the samples that it has asked for; None: it has not begun any.
        self.wanted: dict[int, set[int]] | None = None
        self.step = -1  # that records are filed under

    def attach(self, stream: int) -> None:
        """A trainer is there, and has asked for nothing yet."""
        self.trainer, self.wanted = stream, None

    def detach(self) -> None:
        """The trainer is gone."""
        self.trainer, self.wanted = None, None

    def file_under(self, step: int) -> None:
        """Records are of that step from now on."""
        self.step = step

    def begin(self, batch: int, still_open: Collection[int]) -> None:
        """The trainer is about to say what it wants of that batch.

        Args:
            still_open: batches whose requested responses it still wants.
        """
        known = self.wanted or {}
        self.wanted = {number: known.get(number, set()) for number in still_open} | {batch: set()}

    def want(self, batch: int, samples: Set[int]) -> Set[int]:
        """The trainer asks for these of a batch. Returns those that are new."""
        assert self.wanted is not None
        new = samples - self.wanted[batch]
        self.wanted[batch] |= new
        return new

    def take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        if self._entries:
            actions.insert(0, Append(tuple(self._entries)))
            self._entries = []
        return actions

    def keep(self, entry: Entry) -> None:
        """Have an entry written to the journal before anything of this event is said."""
        self._entries.append(entry)

    def send(self, stream: int, message: ToServer | ToTrainer) -> None:
        self._actions.append(Send(stream, message))

    def to_trainer(self, message: ToTrainer) -> None:
        if self.trainer is not None:
            self._actions.append(Send(self.trainer, message))

    def of_sample(self, message: FinishedRollout | Parked) -> None:
        """For a trainer that has asked for this response. One that is back but has not yet said
        what it wants may want other tokens; what it is owed is sent when it does."""
        work = message.work
        if self.wanted is not None and work.sample in self.wanted.get(work.batch, ()):
            self.to_trainer(message)

    def of_batch(self, message: WindowClosed | Withdrawn) -> None:
        """The same, for one that has asked for anything of the batch."""
        if self.wanted is not None and message.batch in self.wanted:
            self.to_trainer(message)

    def close(self, stream: int, reason: str) -> None:
        self._actions.append(Close(stream, reason))

    def request(self, instance: str, nonce: str, pool: str) -> None:
        self._actions.append(Request(instance, nonce, pool))

    def terminate(self, instance: str, grace_seconds: float = 0.0) -> None:
        self._actions.append(Terminate(instance, grace_seconds))

    def record(self, kind: str, instance: str = "", **detail: Any) -> None:
        self._actions.append(Record(kind, self.step, instance, detail))

    def exit(self, code: int, reason: str) -> None:
        self._actions.append(Exit(code, reason))
