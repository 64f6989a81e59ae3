"""How long a thread has run or waited for a processor: a busy host is no slow line, and a process
that it does not let run does not stand still."""

import os
from typing import Final

import msgspec

from rlboost_jax.messages import Renewed

_STATISTICS: Final = "/proc/{}/schedstat"  # ran, waited (ns), times: Linux


def busy_seconds() -> float:
    """Processor time of this thread, waiting included; 0 where it is not counted."""
    return sum(_ran_and_waited("thread-self"))


def waited_seconds(pid: int) -> float:
    """Seconds that a process's first thread waited for a processor.

    0 where they are not counted, or the process has ended.
    """
    return _ran_and_waited(str(pid))[1]


def _ran_and_waited(whose: str) -> tuple[float, float]:
    """Seconds that a thread ran, and waited for a processor; zeros where not counted."""
    try:
        file = os.open(_STATISTICS.format(whose), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0, 0.0
    try:
        ran, waited, _ = os.read(file, 100).split()
        return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0
    finally:
        os.close(file)


def busy_now(answer: Renewed) -> Renewed:
    """Add this thread's busy seconds to an answer, for the other side to subtract."""
    return msgspec.structs.replace(answer, busy=busy_seconds())
