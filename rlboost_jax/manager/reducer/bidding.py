"""Bids for shared devices, carried out: each server that has a neighbour is told what its own is
worth now, and its device goes to the highest bidder (`rlboost_jax.rollout.sharing.auction`).

Nothing is kept across a restart: servers that dial again have no bid until they are told.
"""

import math
from collections.abc import Sequence
from typing import Final

from rlboost_jax.manager.policies.bids import Bidder, bids
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.messages import Bid

LOOK_SECONDS: Final = 0.25  # between two looks
NEWS: Final = 1.25  # a price that differs by less is not said


class Bidding:
    """What this run's servers bid for their devices.

    Attributes:
        wake_at: when it must be looked at again; inf: nothing has changed since the last look.
    """

    def __init__(self, settings: Settings, owners: Owners) -> None:
        fleet = settings.fleet
        self._worth = fleet.reserved_price_per_hour + fleet.worth_per_hour or 1.0
        self._roster, self._outbox = owners.roster, owners.outbox
        self._said: dict[int, float] = {}  # by stream
        self._look_at = -math.inf
        self.wake_at = math.inf

    def settle(self, batches: Sequence[BatchRecord], now: float) -> None:
        """Tell servers their bids where these have changed.

        Args:
            batches: that are open.
        """
        bidders = self._roster.index.bidders
        if not bidders:
            return
        if now < self._look_at:
            self.wake_at = self._look_at
            return
        self.wake_at, self._look_at = math.inf, now + LOOK_SECONDS
        instances = list(bidders.values())
        unfinished = [batch for batch in batches if not batch.finished]
        prices = bids(
            [self._bidder(instance, unfinished) for instance in instances],
            left=sum([len(batch.rollouts) - batch.num_finished for batch in unfinished]),
            row_tokens=self._roster.row_tokens,
            worth=self._worth,
        )
        said, self._said = self._said, {}
        for instance, price in zip(instances, prices, strict=True):
            known = said.get(instance.stream, 0.0)
            if _differ(known, price):
                known = price
                self._outbox.send(instance.stream, Bid(price=price))
            self._said[instance.stream] = known

    def _bidder(self, instance: Instance, batches: Sequence[BatchRecord]) -> Bidder:
        slots, cache = instance.hello.slots, instance.hello.cache_tokens
        return Bidder(
            room=max(1, min(slots, int(cache / self._roster.row_tokens))) if cache else slots,
            held=len(instance.held),
            has_device=instance.slots > 0,
            ready=any(instance.ready_for(batch) for batch in batches),
        )


def _differ(one: float, other: float) -> bool:
    if not one or not other:
        return one != other
    return not 1 / NEWS <= one / other <= NEWS
