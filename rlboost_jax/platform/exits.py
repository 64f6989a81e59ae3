"""How a trainer ends: its exit codes.

0     the run is complete
1     it broke: the same command goes on from the last checkpoint
2     a mistake: the same command ends in the same way until something is changed
130   it was asked to end (SIGINT); 143 the same (SIGTERM); the same command goes on
137   it was killed (SIGKILL), as shells and supervisors have it: 128 + the signal
"""

import os
import re
import signal
import sys
import threading
import time
from typing import Final, NoReturn

from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.output_relay import finish

COMPLETE: Final = 0
BROKEN: Final = 1
MISTAKE: Final = 2
_KILLED: Final = 128  # plus the number of the signal
LEAVE_SECONDS: Final = 60.0  # for a trainer to close what it has opened, once its disk hangs

# Others send these, or the kernel where no memory is left. A crash has signals of its own.
_SENT: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'.*")
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
    """End this process after `seconds` unless it ends by itself.

    Its main thread may hang in a system call, or wait for servers that get no weights.
    """

    def wait_and_leave() -> None:
        time.sleep(seconds)
        leave(line, code, at_once=True)

    threading.Thread(target=wait_and_leave, name="leave soon", daemon=True).start()


def threads_left() -> bool:
    """Whether Python would wait for threads after the main one.

    Ours are over when a run is closed; one of a library may never be (`WritesStalled`).
    """
    main = threading.main_thread()
    return any(each is not main and not each.daemon for each in threading.enumerate())


def of_error(error: BaseException | None) -> int:
    """Return a trainer's exit code for an unhandled error."""
    if error is None:
        return COMPLETE
    if isinstance(error, KeyboardInterrupt):
        return by_signal(error.args[0] if error.args else signal.SIGINT)
    code: int = getattr(error, "exit_code", MISTAKE if isinstance(error, Mistake) else BROKEN)
    return code


def by_signal(number: int) -> int:
    return _KILLED + number


def of_process(returncode: int) -> int:
    """Convert `subprocess`' negative codes to a shell's."""
    return by_signal(-returncode) if returncode < 0 else returncode


def is_sent(code: int) -> bool:
    """Whether a process was ended from outside.

    Args:
        code: one of `of_process`.
    """
    return any(code == by_signal(number) for number in _SENT)


def missing_module(last_line: str) -> str:
    """Return the module whose absence ended a process; "" if it ended for another reason.

    Args:
        last_line: of what the process wrote to standard error: the end of Python's traceback.
    """
    found = _NO_MODULE.fullmatch(last_line.strip())
    return found[1] if found else ""


def described(code: int) -> str:
    """Describe a code of `of_process`."""
    if code > _KILLED:
        number = code - _KILLED
        known = number in set(signal.Signals)
        return f"was ended by {signal.Signals(number).name if known else f'signal {number}'}"
    return f"ended with code {code}"
