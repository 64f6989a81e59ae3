"""How long this thread has run or waited for a processor: a busy host is no slow line."""

import os
from pathlib import Path
from typing import Final

import msgspec

from rlboost_jax.messages import Renewed

_STATISTICS: Final = Path("/proc/thread-self/schedstat")  # ran, waited (ns), times: Linux


def busy_seconds() -> float:
    """Since this thread began, all but its sleep; 0 where nobody counts it."""
    try:
        file = os.open(_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        ran, waited, _ = os.read(file, 100).split()
        return (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):
        return 0.0
    finally:
        os.close(file)


def busy_now(answer: Renewed) -> Renewed:
    """With how busy this thread has been, for the other side to leave out."""
    return msgspec.structs.replace(answer, busy=busy_seconds())
