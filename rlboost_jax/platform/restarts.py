"""Whether a process that has ended is started again, and after which pause.

One decision for the first seconds of a process and for all later ones, whichever process starts it.
An end from outside is met with another start after a pause that doubles; a mistake is not, because
the next start would make it again. `learner/supervisor.py` decides about trainers, by what the run
has reached.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, assert_never

from rlboost_jax.platform.backoff import backoff_seconds


class StartsExhausted(RuntimeError):
    """A process that a run needs was ended from outside too often in a row."""


class Cause(Enum):
    """Why a process ended."""

    OUTSIDE = auto()  # somebody ended it, or it lacked for a moment what its host has
    MISTAKE = auto()  # it refused what it was given, and would again


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a process.

    Attributes:
        how: goes on after the name of the process, such as "was ended by SIGKILL"; of a mistake
            a line that stands alone.
        served_seconds: from the moment when it was ready to its end; 0: it never was.
    """

    cause: Cause
    how: str
    served_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """How often a process is started, and after which pauses.

    Attributes:
        most_starts: in a row, each ended before it had served for `settled_seconds`; None: no
            limit, for a process that a run can do without.
        settled_seconds: a process that served for as long was a good one: counting begins anew.
        first_pause_seconds: doubles with each start in a row.
    """

    most_starts: int | None = 10
    settled_seconds: float = 5.0
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 5.0


RESTARTS: Final = Restarts()


@dataclass(frozen=True, kw_only=True)
class Again:
    """Decision to start again.

    Attributes:
        failed: starts in a row that came to nothing, to be given to the next decision.
    """

    failed: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Decision not to start again; `line` says why."""

    line: str


def after_end(what: str, failed: int, end: End, restarts: Restarts = RESTARTS) -> Again | Stop:
    """Decide what follows the end of a process.

    Args:
        what: name of the process, for the line.
        failed: starts in a row before this one that came to nothing.
    """
    match end.cause:
        case Cause.MISTAKE:
            return Stop(line=end.how)
        case Cause.OUTSIDE:
            failed = 1 if end.served_seconds >= restarts.settled_seconds else failed + 1
            if restarts.most_starts is not None and failed >= restarts.most_starts:
                times = "once" if failed == 1 else f"{failed} times in a row"
                return Stop(line=f"{what} was started {times} in vain; the last {end.how}")
            pause = backoff_seconds(
                failed - 1,
                first=restarts.first_pause_seconds,
                longest=restarts.longest_pause_seconds,
            )
            return Again(failed=failed, seconds=pause)
        case _ as never:
            assert_never(never)
