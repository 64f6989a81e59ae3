"""The last lines that a server has printed, for its manager: when it is lost they are at hand.

A bounded ring: when it is full the oldest lines are lost, and counted. Lines are made plain (no
terminal takes them for more than text) and cut, and secrets are taken out of them.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rlboost_jax.messages import MAX_LINE

KEPT: Final = 100  # lines that wait to be sent
HIDDEN: Final = "***"
SHORTEST_SECRET: Final = 8  # characters; a shorter one would take ordinary words with it


class LogLines:
    """Ring of the last printed lines. May be used from any thread.

    Args:
        secrets: words that no line shows.
        say: prints a line.
    """

    def __init__(
        self,
        secrets: Sequence[str] = (),
        *,
        kept: int = KEPT,
        say: Callable[[str], None] = lambda line: print(line, flush=True),
    ) -> None:
        self._secrets = [word for word in secrets if len(word) >= SHORTEST_SECRET]
        self._lines: deque[str] = deque(maxlen=kept)
        self._say, self._lock, self._dropped = say, threading.Lock(), 0

    def say(self, text: str) -> None:
        """Print a text, and keep its lines."""
        self._say(text)
        self.keep(text)

    def keep(self, text: str) -> None:
        for word in self._secrets:
            text = text.replace(word, HIDDEN)
        lines = [plain(line) for line in text.splitlines() if line.strip()]
        with self._lock:
            for line in lines:
                self._dropped += len(self._lines) == self._lines.maxlen
                self._lines.append(line)

    def take(self, most: int) -> tuple[tuple[str, ...], int]:
        """Take the oldest lines not taken yet, and the number lost before them."""
        with self._lock:
            lines = tuple(self._lines.popleft() for _ in range(min(most, len(self._lines))))
            dropped, self._dropped = self._dropped, 0
        return lines, dropped


class KeptRecords(logging.Handler):
    """Log handler that keeps what libraries log, from warnings on."""

    def __init__(self, lines: LogLines) -> None:
        super().__init__(logging.WARNING)
        self._kept = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.keep(f"{record.levelname.lower()} {record.name}: {record.getMessage()}")


def plain(line: str) -> str:
    """Make a line plain text, no longer than a message takes."""
    shown = "".join(letter if letter.isprintable() else " " for letter in line[: 2 * MAX_LINE])
    return shown.strip()[:MAX_LINE]
