"""How long a thread has run or waited for a processor: a busy host is no slow line, and a process
that it does not let run does not stand still."""

import os
from typing import Final

import msgspec

from rlboost_jax.messages import Renewed

_STATISTICS: Final = "/proc/{}/schedstat"  # ran, waited (ns), times: Linux


def busy_seconds() -> float:
    """Since this thread began, all but its sleep; 0 where nobody counts it."""
    return sum(_ran_and_waited("thread-self"))


def waited_seconds(pid: int) -> float:
    """That a process would have run and had no processor, by its first thread; 0 where nobody
    counts it, or it has ended."""
    return _ran_and_waited(str(pid))[1]


def _ran_and_waited(whose: str) -> tuple[float, float]:
    """Seconds; none where nobody counts them."""
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
    """With how busy this thread has been, for the other side to leave out."""
    return msgspec.structs.replace(answer, busy=busy_seconds())
