"""Effects in order: each waits for its journal entries and for the effects before it."""

from collections import deque
from collections.abc import Callable

Effect = Callable[[], object]


class OrderedEffects:
    """Queue of effects, each released when its journal entries are durable.

    Args:
        now: seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # Of all entries so far: how often some were begun, and how often they are through.
        self._begun = self._through = 0
        self._since = 0.0  # when the disk last did something, or was last asked about
        self.waiting: deque[tuple[int, Effect]] = deque()  # for so many of these

    def begin(self) -> None:
        """Note that entries are being written to the journal."""
        if self._begun == self._through:
            self._since = self._now()
        self._begun += 1

    def take(self, effect: Effect) -> None:
        """Run an effect in its turn; at once if nothing is pending."""
        if self._begun == self._through:
            effect()
        else:
            self.waiting.append((self._begun, effect))

    def through(self) -> None:
        """Note that the oldest pending entries are written, or failed."""
        self._through += 1
        self._since = self._now()
        while self.waiting and self.waiting[0][0] <= self._through:
            self.waiting.popleft()[1]()

    def kept_back(self, least: float) -> float:
        """Seconds that the disk has delayed pending effects since the last call.

        0 while they are fewer than `least`.
        """
        now = self._now()
        if self._begun == self._through or now - self._since <= least:
            return 0.0
        since, self._since = self._since, now
        return now - since
