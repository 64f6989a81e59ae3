"""The start of a worker's program: `python -m module SOCKET`, with an inherited socket's number."""

import gc
import os
import socket
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

from rlboost_jax.platform.frames import frame, receive
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.workers.worker_kind import WorkerReady


class WorkerSetup(Protocol):
    """First frame of any kind of worker."""

    @property
    def sandbox_required(self) -> bool: ...


Setup = TypeVar("Setup", bound=WorkerSetup)
Imported = TypeVar("Imported")


def started(
    kind: type[Setup], imports: Callable[[Setup], Imported]
) -> tuple[socket.socket, Setup, Imported] | None:
    """Import what the first frame names, and report that to the trainer.

    Nothing is read from standard input, and what is printed to standard output goes nowhere.

    Args:
        kind: of the first frame.
        imports: raises ConfigError if it names what cannot be used.

    Returns:
        The socket, the frame and what `imports` has returned; None: there is nothing to do.
    """
    line = socket.socket(fileno=int(sys.argv[1]))
    # Programs that a user's code starts would hold it open after this process has ended, and the
    # trainer would not notice the end.
    line.set_inheritable(False)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    setup = receive(line.fileno(), kind)
    if setup is None:
        return None
    os.environ["RLBOOST_SANDBOX"] = "required" if setup.sandbox_required else "best_effort"
    try:
        imported = imports(setup)
    except ConfigError as error:
        line.sendall(frame(WorkerReady(mistake=str(error))))
        return None
    gc.collect()
    gc.freeze()  # else the first collection of a fork copies all that was imported
    line.sendall(frame(WorkerReady()))
    return line, setup, imported
