"""What one kind of worker is, and the frames that all kinds share.

Trainer → worker: the kind's first frame, then its requests and `Ping`. Worker → trainer:
`WorkerReady`, then its answers and `Pong`. Where a worker is another host's, that host sends
`WorkerEnded` as the last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

GRACE_SECONDS: Final = 20.0


class WorkerFrame(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all frames."""


class WorkerReady(WorkerFrame, frozen=True, kw_only=True, tag="Ready"):
    """The answer to the first frame."""

    mistake: str = ""  # why what the worker imports cannot be used


class Ping(WorkerFrame, frozen=True, kw_only=True):
    number: int


class Pong(WorkerFrame, frozen=True, kw_only=True):
    number: int


class WorkerEnded(WorkerFrame, frozen=True, kw_only=True, tag="Ended"):
    """A worker of another host is gone, and so is this connection."""

    why: str
    outside: bool  # somebody has ended it


@dataclass(frozen=True, kw_only=True)
class RemoteProtocol:
    """How workers on other hosts reach the trainer.

    Attributes:
        host: name of such a host in messages, such as "environment host".
        setting: the setting that says where the trainer listens.
        command: what starts a host.
        folder: in a run's folder, with what opens the listener.
        route, role: of the listener, and of the certificate that it demands.
        setup: the first frame of such a worker.
        check: raises ValueError for a frame that no honest worker sends.
    """

    host: str
    setting: str
    command: str
    folder: str
    route: str
    role: str
    setup: msgspec.Struct
    check: Callable[[msgspec.Struct], None]


@dataclass(frozen=True, kw_only=True)
class WorkerKind:
    """A kind of worker: its program, its frames, its limits and its names in messages.

    A session is one piece of work in a worker, such as an episode or a response to be judged. Its
    number is never given twice by a pool.

    Attributes:
        what: name of a worker in messages, such as "environment worker".
        module: its program, `python -m module SOCKET` with the number of an inherited socket.
        setup: the first frame that it gets.
        decode: a frame of a worker. Raises MsgspecError.
        session_of: the session that a frame other than `WorkerReady`, `Pong` and `WorkerEnded` is
            about.
        closing: the frame that ends a session; None: none does.
        is_stuck: whether a frame says that a thread of the worker hangs. The worker gets no further
            session and ends with its last one.
        setting: the setting that names what a worker imports.
        imports: what it imports, for messages.
        workers: processes of this host that sessions share; 0: all workers are other hosts'.
        sessions: most of them in one process at a time; None: any number.
        one_each: no two sessions share a process.
        answer_seconds: limit of a worker's answer to `Ping`; one that is later is killed.
        end_seconds: for a worker to end by itself with what it has started, once it is asked to; 0:
            it is killed at once, with all processes of its session.
        remote: how workers on other hosts come; None: there are none.
    """

    what: str
    module: str
    setup: msgspec.Struct
    decode: Callable[[bytes], msgspec.Struct]
    session_of: Callable[[Any], int]
    closing: Callable[[int], msgspec.Struct] | None = None
    is_stuck: Callable[[msgspec.Struct], bool] = lambda frame: False
    setting: str
    imports: str
    workers: int
    sessions: int | None = None
    one_each: bool = False
    answer_seconds: float
    end_seconds: float = 0.0
    remote: RemoteProtocol | None = None

    @property
    def a_worker(self) -> str:
        """Name of a worker with its article."""
        return f"{'an' if self.what[0] in 'aeiou' else 'a'} {self.what}"
