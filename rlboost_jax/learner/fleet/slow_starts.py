"""Console lines about servers that take long to start.

A server joins once its programs are ready. The first on a kind of host compiles and checks them,
which takes minutes for a model of real size; neither the manager nor a provider ends it meanwhile.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rlboost_jax.providers.log_files import tail_of

FIRST_SECONDS: Final = 20.0  # of a start before it is mentioned, then twice as long, and so on
MOST_SECONDS: Final = 600.0  # between two lines
_SHOWN: Final = 8  # servers whose logs are read for a line
_LETTERS: Final = 80  # of the last line of a log
_SILENT: Final = "no line from it here yet"


class SlowStarts:
    """Reports at growing intervals on servers that have not joined yet.

    Args:
        logs: folder with a file `<name>.log` for each server on this host. Those of others are with
            their providers.
        clock: seconds.
    """

    def __init__(self, logs: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logs, self._clock = logs, clock
        self._since: dict[str, float] = {}  # when each was first seen
        self._pause, self._next = FIRST_SECONDS, 0.0

    def look(self, starting: Sequence[str]) -> str:
        """Return a line on the starting servers, or "" if none is due.

        Args:
            starting: names of servers that have not joined yet.
        """
        now = self._clock()
        self._since = {name: self._since.get(name, now) for name in starting}
        slow = [name for name, since in self._since.items() if now >= since + FIRST_SECONDS]
        if not slow:
            self._pause = FIRST_SECONDS
            return ""
        if now < self._next:
            return ""
        self._next, self._pause = now + self._pause, min(2 * self._pause, MOST_SECONDS)
        seconds = now - min(self._since[name] for name in slow)
        doing = Counter(self._last_line(name) for name in slow[:_SHOWN])
        states = "; ".join(
            f"{count} × {text}" if count > 1 else text for text, count in doing.items()
        )
        servers = f"{len(slow)} servers have" if len(slow) > 1 else f"{slow[0]} has"
        return f"  fleet: {servers} been starting for up to {seconds:.0f} s: {states}"

    def _last_line(self, name: str) -> str:
        lines = tail_of(self._logs / f"{name}.log", 1)
        return lines[0][:_LETTERS] if lines else _SILENT
