"""Queue of the actions that the parts of the manager ask for."""

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
from rlboost_jax.manager.journal_entries import Entry
from rlboost_jax.messages import (
    FinishedRollout,
    Parked,
    ResponsesWithdrawn,
    ToServer,
    ToTrainer,
    WindowClosed,
)


class Outbox:
    """Actions in the order in which they were decided, after the journal entries they need."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._entries: list[Entry] = []
        self.trainer: int | None = None  # its stream
        # By open batch, the samples that it has asked for; None: it has not begun any.
        self.wanted: dict[int, set[int]] | None = None
        self.step = -1  # that records are filed under

    def attach(self, stream: int) -> None:
        """Register a trainer's stream; it has asked for nothing yet."""
        self.trainer, self.wanted = stream, None

    def detach(self) -> None:
        """Unregister the trainer's stream."""
        self.trainer, self.wanted = None, None

    def file_under(self, step: int) -> None:
        """File records under this step from now on."""
        self.step = step

    def begin(self, batch: int, still_open: Collection[int]) -> None:
        """Prepare for the trainer's requests for samples of a batch.

        Args:
            still_open: batches whose requested responses it still wants.
        """
        known = self.wanted or {}
        self.wanted = {number: known.get(number, set()) for number in still_open} | {batch: set()}

    def want(self, batch: int, samples: Set[int]) -> Set[int]:
        """Add samples of a batch that the trainer asks for. Returns the new ones."""
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
        """Queue a journal entry, written before any other action of this event."""
        self._entries.append(entry)

    def send(self, stream: int, message: ToServer | ToTrainer) -> None:
        self._actions.append(Send(stream, message))

    def to_trainer(self, message: ToTrainer) -> None:
        if self.trainer is not None:
            self._actions.append(Send(self.trainer, message))

    def of_sample(self, message: FinishedRollout | Parked) -> None:
        """Send a message about a response, if the trainer has asked for that response.

        A trainer that has reconnected but not yet asked may want other tokens; it gets what it is
        owed when it asks.
        """
        work = message.work
        if self.wanted is not None and work.sample in self.wanted.get(work.batch, ()):
            self.to_trainer(message)

    def of_batch(self, message: WindowClosed | ResponsesWithdrawn) -> None:
        """Send a message about a batch, if the trainer has asked for any of its responses."""
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
