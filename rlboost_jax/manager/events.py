"""What the manager hears (events) and what it wants done (actions).

A stream is one connection of a server or of the trainer, named by a number that is never
used twice. The driver turns sockets, processes and clocks into events, and actions back.
"""

from dataclasses import dataclass
from typing import Any

from rlboost_jax.manager.journal import Entry
from rlboost_jax.messages import ServerMessage, ToServer, ToTrainer, TrainerMessage

# Events -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromServer:
    """A frame of a rollout server. The first of a stream must be `Hello`."""

    stream: int
    message: ServerMessage


@dataclass(frozen=True, slots=True)
class ServerGone:
    """The stream ended, or had to be given up (malformed frame, full send queue)."""

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
class ServerStarted:
    """The provider has started a server; what names the same process in its Hello is it."""

    instance: str
    pid: int


@dataclass(frozen=True, slots=True)
class InstanceExited:
    """A process that the provider started has ended, or could not be started."""

    instance: str
    detail: str
    sick: bool = False  # it says so with its exit code


@dataclass(frozen=True, slots=True)
class ServerFound:
    """A server that the provider of an earlier manager started still runs."""

    instance: str
    pid: int


@dataclass(frozen=True, slots=True)
class MachineAdded:
    """The market lends one more machine. "" returns one that was taken namelessly."""

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
class Stalled:
    """The driver itself did not run for so long: nobody's silence in that time counts."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The manager process was asked to go."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline has come."""


Event = (
    FromServer
    | ServerGone
    | FromTrainer
    | TrainerGone
    | ServerStarted
    | InstanceExited
    | ServerFound
    | MachineAdded
    | MachineRemoved
    | Stalled
    | Shutdown
    | Tick
)

# Actions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """Write these to the journal. First of all actions: nothing is said that is not kept."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Send:
    stream: int
    message: ToServer | ToTrainer


@dataclass(frozen=True, slots=True)
class Close:
    """End a stream once all that was sent before is out. No `…Gone` event is expected."""

    stream: int
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Have the provider start a server of this name."""

    instance: str


@dataclass(frozen=True, slots=True)
class Signal:
    """Have the provider end a server it started."""

    instance: str
    notice: bool  # SIGTERM, else SIGKILL


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


Action = Append | Send | Close | Start | Signal | Record | Exit
