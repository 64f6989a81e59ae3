"""Which of the neighbours on a device has it: an auction that never closes. Decisions only.

Neighbours are rollout servers of different runs on one device. Each says what the device is worth
to its run (`rlboost_jax.manager.policies.bids`), and the highest bidder has it alone: programs of
two engines in turns would both be slower.

- The device changes hands where another bids more than `MARGIN` times as much as its holder, since
  the holder's rollouts are prefilled again elsewhere then; or anything where the holder bids 0.
- It is free for the next one when its holder says that it has let go, or has left.
- Whoever has it pays for it, until the next one has it: bills add up to the whole time.

Times are seconds on any clock that does not run backwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

MARGIN: Final = 2.0


def _none() -> Mapping[int, float]:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Auction:
    """Neighbours on a device, by number.

    Attributes:
        bids: of each that is there.
        holder: that has the device; None: nobody is there.
        winner: that has it next, once the holder has let go; None: it stays where it is.
        paid: seconds that each had it until `since`, those that have left included.
    """

    bids: Mapping[int, float] = field(default_factory=_none)
    holder: int | None = None
    winner: int | None = None
    paid: Mapping[int, float] = field(default_factory=_none)
    since: float = 0.0


def entered(auction: Auction, who: int, now: float) -> Auction:
    """Auction after a neighbour has come; who comes first has the device."""
    return bid(auction, who, 0.0, now)


def bid(auction: Auction, who: int, price: float, now: float) -> Auction:
    """Auction after a neighbour has bid another price."""
    auction = replace(auction, bids=MappingProxyType({**auction.bids, who: price}))
    if auction.holder is None:
        return _handed(auction, who, now)
    return _outbid(auction)


def let_go(auction: Auction, who: int, now: float) -> Auction:
    """Auction after its holder, which was outbid, has stopped using the device."""
    if who != auction.holder or auction.winner is None:
        return auction
    return _handed(auction, _best(auction), now)


def left(auction: Auction, who: int, now: float) -> Auction:
    """Auction after a neighbour has gone."""
    bids = {number: price for number, price in auction.bids.items() if number != who}
    auction = replace(auction, bids=MappingProxyType(bids))
    if who == auction.holder:
        return _handed(auction, _best(auction) if bids else None, now)
    return _outbid(replace(auction, winner=None)) if who == auction.winner else auction


def has(auction: Auction, who: int) -> bool:
    """Whether a neighbour may use the device."""
    return who == auction.holder and auction.winner is None


def bills(auction: Auction, now: float) -> dict[int, float]:
    """Seconds of the device that each neighbour has to pay for, by now."""
    paid = dict(auction.paid)
    if auction.holder is not None:
        paid[auction.holder] = paid.get(auction.holder, 0.0) + now - auction.since
    return paid


def _outbid(auction: Auction) -> Auction:
    """Auction with a winner, if the holder is outbid."""
    if auction.holder is None or auction.winner is not None:
        return auction
    best, held = _best(auction), auction.bids[auction.holder]
    return replace(auction, winner=best) if auction.bids[best] > MARGIN * held else auction


def _best(auction: Auction) -> int:
    """The highest bidder; of equals the holder, else the first number."""
    return max(auction.bids, key=lambda who: (auction.bids[who], who == auction.holder, -who))


def _handed(auction: Auction, who: int | None, now: float) -> Auction:
    paid = MappingProxyType(bills(auction, now))
    return replace(auction, holder=who, winner=None, paid=paid, since=now)
