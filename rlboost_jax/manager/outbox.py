"""Where the parts of the manager leave what they want done."""

from typing import Any

from rlboost_jax.manager.events import (
    Action,
    Append,
    Close,
    Exit,
    Record,
    Send,
    Signal,
    Start,
)
from rlboost_jax.manager.journal import Entry
from rlboost_jax.messages import FinishedRollout, ToServer, ToTrainer, WindowClosed, Withdrawn


class Outbox:
    """Actions in the order in which they were decided, behind what must be durable first."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._entries: list[Entry] = []
        self.trainer: int | None = None  # its stream
        self.wanted: set[int] | None = None  # samples of the active step that it has asked for
        self.step = -1  # that records are filed under

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

    def of_step(self, message: FinishedRollout | WindowClosed | Withdrawn) -> None:
        """For a trainer that has asked for this. One that is back but has not yet said what
        it wants may want other tokens; what it is owed is sent when it does."""
        if self.wanted is None:
            return
        if not isinstance(message, FinishedRollout) or message.work.sample in self.wanted:
            self.to_trainer(message)

    def close(self, stream: int, reason: str) -> None:
        self._actions.append(Close(stream, reason))

    def start(self, instance: str) -> None:
        self._actions.append(Start(instance))

    def signal(self, instance: str, *, notice: bool) -> None:
        self._actions.append(Signal(instance, notice))

    def record(self, kind: str, instance: str = "", **detail: Any) -> None:
        self._actions.append(Record(kind, self.step, instance, detail))

    def exit(self, code: int, reason: str) -> None:
        self._actions.append(Exit(code, reason))
