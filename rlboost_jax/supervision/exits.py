"""How a trainer ends: its exit codes.

0     the run is complete
1     it broke: the same command goes on from the last checkpoint
2     a mistake: the same command ends in the same way until something is changed
130   it was asked to end (SIGINT); 143 the same (SIGTERM); the same command goes on
137   it was killed (SIGKILL), as shells and supervisors have it: 128 + the signal
"""

import os
import signal
import sys
import threading
import time
from typing import Final, NoReturn

from rlboost_jax.relay.start import finish
from rlboost_jax.settings.errors import Mistake

COMPLETE: Final = 0
BROKEN: Final = 1
MISTAKE: Final = 2
_KILLED: Final = 128  # plus the number of the signal
LEAVE_SECONDS: Final = 60.0  # for a trainer to close what it has opened, once its disk hangs

# Others send these, or the kernel where no memory is left. A crash has signals of its own.
_SENT: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ASKED: Final = frozenset(_KILLED + number for number in (signal.SIGINT, signal.SIGTERM))


def leave(line: str, code: int, *, at_once: bool = False) -> NoReturn:
    """End this process with a line for people and a code for programs.

    Args:
        at_once: without what modules do at the end. JAX would wait for the other processes of a
            trainer, which are ending too.
    """
    print(line, file=sys.stderr, flush=True)
    if at_once:
        sys.stdout.flush()
        finish()
        os._exit(code)
    sys.exit(code)


def leave_soon(line: str, code: int, seconds: float = LEAVE_SECONDS) -> None:
    """End this process after so long unless it has ended by itself, whatever its main thread waits
    for: it may stand in the same system call, or wait for servers that get no weights."""

    def wait_and_leave() -> None:
        time.sleep(seconds)
        leave(line, code, at_once=True)

    threading.Thread(target=wait_and_leave, name="leave soon", daemon=True).start()


def threads_left() -> bool:
    """Whether Python would wait for threads once the main one is over.

    Ours are over when a run is closed; one of a library may never be (`WritesStalled`).
    """
    main = threading.main_thread()
    return any(each is not main and not each.daemon for each in threading.enumerate())


def of_error(error: BaseException | None) -> int:
    """The code that an error which nobody has handled ends a trainer with."""
    if error is None:
        return COMPLETE
    if isinstance(error, KeyboardInterrupt):
        return by_signal(error.args[0] if error.args else signal.SIGINT)
    code: int = getattr(error, "exit_code", MISTAKE if isinstance(error, Mistake) else BROKEN)
    return code


def by_signal(number: int) -> int:
    return _KILLED + number


def of_process(returncode: int) -> int:
    """The code in the words of a shell, for `subprocess`' negative ones."""
    return by_signal(-returncode) if returncode < 0 else returncode


def is_sent(code: int) -> bool:
    """Whether somebody else ended a process.

    Args:
        code: one of `of_process`.
    """
    return any(code == by_signal(number) for number in _SENT)


def described(code: int) -> str:
    """What a code of `of_process` says."""
    if code > _KILLED:
        number = code - _KILLED
        known = number in set(signal.Signals)
        return f"was ended by {signal.Signals(number).name if known else f'signal {number}'}"
    return f"ended with code {code}"
