"""The auction of a device, presided over by one of the servers on it.

Invariants: at most one neighbour is told that the device is its own; it hears so once the one
before has said that it has let go, has gone, or has said nothing for `LET_GO_SECONDS`, after which
it is disconnected. What counts of a neighbour is its bid and its word that it has let go; both end
with its connection.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from rlboost_jax.rollout.sharing.auction import Auction, bid, bills, entered, has, left, let_go

LET_GO_SECONDS: Final = 30.0  # a dispatch, and the release of all pages

Tell = Callable[[bool, int], None]  # whether the device is its own, and the turn


class Presider:
    """Tells each neighbour whether the device is its own. Belongs to the event loop.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._auction = Auction()
        self._members: dict[int, tuple[Tell, Callable[[], None]]] = {}
        self._told: dict[int, tuple[bool, int]] = {}
        self._turn = self._next = 0
        self._overdue: asyncio.TimerHandle | None = None

    @property
    def bills(self) -> dict[int, float]:
        """Seconds of the device by neighbour, so far."""
        return bills(self._auction, self._clock())

    def enter(self, tell: Tell, dismiss: Callable[[], None]) -> int:
        """Add a neighbour; returns its number.

        Args:
            dismiss: ends its connection, after which `leave` is called.
        """
        who, self._next = self._next, self._next + 1
        self._members[who] = tell, dismiss
        self._set(entered(self._auction, who, self._clock()))
        return who

    def bid(self, who: int, price: float) -> None:
        self._set(bid(self._auction, who, price, self._clock()))

    def let_go(self, who: int, turn: int) -> None:
        """Record that a neighbour uses the device no more; only in answer to its newest turn."""
        if self._told.get(who) == (False, turn):
            self._set(let_go(self._auction, who, self._clock()))

    def leave(self, who: int) -> None:
        del self._members[who]
        self._told.pop(who, None)
        self._set(left(self._auction, who, self._clock()))

    def close(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()

    def _set(self, auction: Auction) -> None:
        asked = (self._auction.holder, self._auction.winner)
        self._auction = auction
        for who in sorted(self._members, key=lambda who: has(auction, who)):
            yours = has(auction, who)
            if self._told.get(who, (None, 0))[0] != yours:
                self._turn += 1
                self._told[who] = yours, self._turn
                self._members[who][0](yours, self._turn)
        if (auction.holder, auction.winner) != asked:
            self._await(auction)

    def _await(self, auction: Auction) -> None:
        """Wait for the holder to let go, if it is to."""
        self.close()
        self._overdue = None
        if auction.winner is not None and auction.holder is not None:
            dismiss = self._members[auction.holder][1]
            loop = asyncio.get_running_loop()
            self._overdue = loop.call_later(LET_GO_SECONDS, dismiss)
