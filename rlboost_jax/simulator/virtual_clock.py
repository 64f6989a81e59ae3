"""Virtual time: what is to happen, in order of time and, at one time, of being planned."""

import heapq
from collections.abc import Callable


class VirtualClock:
    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Schedule a call at a time, or at once where that has passed."""
        self._count += 1
        heapq.heappush(self._planned, (max(time, self.now), self._count, what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.at(self.now + seconds, what)

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Let time pass until `until` holds, nothing is scheduled, or time reaches `limit`."""
        planned = self._planned
        while planned and not until():
            time, _, what = heapq.heappop(planned)
            if time > limit:
                heapq.heappush(planned, (time, _, what))
                self.now = limit
                return
            self.now = time
            what()

    def pass_until(self, end: float) -> None:
        """Let all happen that is scheduled by `end`."""
        self.at(end, lambda: None)  # time goes on until then, though nothing else is scheduled
        self.run(lambda: False, end)
