"""Bids for devices that servers of other runs are on, too: what each is worth to this run now.

A run bids for as many devices as its open responses fill, for those where it is at work first. Its
price is what an hour of the run is worth over the work left, so the run nearer to its end goes
first: of all orders that has the least sum of waits, each times its worth (Smith 1956, "Various
optimizers for single-stage production"). What the tail of a step leaves free another run has.

Until a run has as many devices as it can fill it bids for all: which of them another run holds
dearer is not known to it. For those beyond it bids a little: better its own than nobody's. All runs
bid the same little. So a device that neither needs stays where it is: to change hands its rollouts
would be prefilled again, and no run would end its step sooner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Dollars an hour for a token, of a device beyond those that the work fills: less than any that they
# fill is worth, and no matter how much the run is worth or has left.
SPARE: Final = 1e-15


@dataclass(frozen=True, kw_only=True)
class Bidder:
    """A server whose device another run's server is on, too."""

    room: int  # rollouts at once when it has the device
    held: int  # rollouts
    has_device: bool
    ready: bool  # it holds parameters that some of the work is for


def bids(bidders: Sequence[Bidder], *, left: int, row_tokens: float, worth: float) -> list[float]:
    """Price of each bidder's device; 0 where the run has nothing to do there.

    Args:
        left: responses that are not finished.
        row_tokens: that one holds on average: the longer they are, the more work is left.
        worth: of an hour of the run, in dollars.
    """
    prices = [0.0] * len(bidders)
    if not left:
        return prices
    price = worth / (left * row_tokens)
    ready = [n for n, bidder in enumerate(bidders) if bidder.ready]
    ranked = sorted(ready, key=lambda n: (not bidders[n].has_device, -bidders[n].held, n))
    without = left  # responses that no device so far has room for
    for n in ranked:
        prices[n] = price if without > 0 else SPARE
        if bidders[n].has_device:
            without -= bidders[n].room
    return prices
