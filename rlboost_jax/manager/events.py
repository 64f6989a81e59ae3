"""Inputs of the manager (events) and what it wants done (actions).

A stream is one connection of a server or of the trainer, named by a number that is never
used twice. The driver turns sockets, the provider's words and clocks into events, and actions back.
"""

from dataclasses import dataclass
from typing import Any

from rlboost_jax.manager.journal_entries import Entry
from rlboost_jax.messages import ServerMessage, ToServer, ToTrainer, TrainerMessage
from rlboost_jax.providers.base import Listed, ProviderEvent

# Events -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromServer:
    """A frame of a rollout server. The first of a stream must be `Hello`."""

    stream: int
    message: ServerMessage


@dataclass(frozen=True, slots=True)
class ServerGone:
    """A server's stream ended, or had to be abandoned (malformed frame, full send queue)."""

    stream: int
    reason: str


@dataclass(frozen=True, slots=True)
class FromTrainer:
    """A frame of the trainer. The first of a stream must be `TrainerHello`."""

    stream: int
    message: TrainerMessage


@dataclass(frozen=True, slots=True)
class TrainerGone:
    stream: int
    reason: str


@dataclass(frozen=True, slots=True)
class MachineAdded:
    """The market lends one more machine. "" returns one that was taken without a name."""

    machine: str


@dataclass(frozen=True, slots=True)
class MachineRemoved:
    """The market takes a machine back, with the server on it.

    "" takes that of some server at work: a removal waits until there is one. `draw` in
    [0, 1) says which, so that chance stays with the sender.
    """

    machine: str
    notice: bool  # False: the server is killed without a word
    draw: float = 0.0


@dataclass(frozen=True, slots=True)
class Priced:
    """New price of an instance of one of several pools, in dollars per hour."""

    pool: str
    price_per_hour: float


@dataclass(frozen=True, slots=True)
class Stalled:
    """The driver itself did not run for this long: silence of peers in that time does not count."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DiskWaited:
    """The disk delayed journal entries, and all messages that depend on them, for this long.

    Peers have not received those messages, so none owes progress in that time.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The manager process was asked to end."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline has come."""


Event = (
    FromServer
    | ServerGone
    | FromTrainer
    | TrainerGone
    | ProviderEvent
    | Listed
    | MachineAdded
    | MachineRemoved
    | Priced
    | Stalled
    | DiskWaited
    | Shutdown
    | Tick
)

# Actions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """Write entries to the journal. It precedes all other actions: what is sent must be durable."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Send:
    stream: int
    message: ToServer | ToTrainer


@dataclass(frozen=True, slots=True)
class Close:
    """End a stream once everything queued has been sent. No `…Gone` event is expected."""

    stream: int
    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """Ask the provider for an instance. The outcome is a `ProviderEvent`."""

    instance: str
    nonce: str  # its `Hello` will echo it
    pool: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Have the provider end an instance that it was asked for."""

    instance: str
    grace_seconds: float  # 0: at once


@dataclass(frozen=True, slots=True)
class Record:
    """A line of events.jsonl; the driver adds the time."""

    kind: str
    step: int  # -1 before the first
    instance: str
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exit:
    code: int
    reason: str


Action = Append | Send | Close | Request | Terminate | Record | Exit
