"""How a trainer ends, for whoever started it: its exit codes.

0     the run is complete
1     it broke: the same command goes on from the last checkpoint
2     a mistake: the same command ends in the same way until something is changed
130   it was asked to end (SIGINT); 143 the same (SIGTERM); the same command goes on
137   it was killed (SIGKILL), as shells and supervisors have it: 128 + the signal
"""

import signal
import sys
from typing import Final, NoReturn

COMPLETE: Final = 0
BROKEN: Final = 1
MISTAKE: Final = 2
_KILLED: Final = 128  # plus the number of the signal

ASKED: Final = frozenset(_KILLED + number for number in (signal.SIGINT, signal.SIGTERM))


def leave(line: str, code: int) -> NoReturn:
    """End this process with a line for people and a code for programs."""
    print(line, file=sys.stderr)
    sys.exit(code)


def by_signal(number: int) -> int:
    return _KILLED + number


def of_process(returncode: int) -> int:
    """The code in the words of a shell, for `subprocess`' negative ones."""
    return by_signal(-returncode) if returncode < 0 else returncode


def described(code: int) -> str:
    """What a code of `of_process` says."""
    if code > _KILLED:
        number = code - _KILLED
        known = number in set(signal.Signals)
        return f"was ended by {signal.Signals(number).name if known else f'signal {number}'}"
    return f"ended with code {code}"
