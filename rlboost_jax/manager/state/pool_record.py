"""One pool: requests and their outcomes, costs, and its pause after failures."""

import math
import sys
from dataclasses import dataclass
from typing import Final

from rlboost_jax.manager.accounts import Integral
from rlboost_jax.manager.journal_entries import PoolEntry
from rlboost_jax.manager.policies.fleet_size import Hazard
from rlboost_jax.platform.backoff import backoff_seconds

FIRST_RETRY_SECONDS = 0.5  # after a server ended that gave no token; doubles each time
NEWEST_START = 0.3  # weight of the last start-up
FORGET_SECONDS = 4 * 3600.0  # in which what was learnt of losses fades to 1 / e
UNLIMITED: Final = sys.maxsize  # instances


@dataclass(frozen=True, kw_only=True)
class PoolTerms:
    """Properties of a pool that stay as they are for the life of a manager.

    Attributes:
        name: what its provider calls the pool.
        prefix: how names of its instances begin.
        named: the run's settings name it; events and the journal then do so too.
        most: instances at once.
        later: instances that a size may count on besides those that can be requested now.
        price: dollars per hour of an instance, until a price is reported.
        longest_retry: seconds, of a pause.
        quick_seconds: beyond a start-up: an instance taken away before that came for nothing.
        single_after: failures in a row after which one instance is requested at a time.
    """

    name: str
    prefix: str
    named: bool = True
    most: int
    later: int = 0
    price: float
    longest_retry: float
    quick_seconds: float
    single_after: int


class PoolRecord:
    """Record of a pool's requests and instances.

    Attributes:
        price: dollars per hour of an instance, now.
        reported_price: that, where this manager received it in a report; None: by the settings.
        present: asked for and not over, doomed ones included.
        standing: present and not doomed.
        waiting: standing and not joined.
        paid: present and granted.
        members: those with a stream.
        asked, granted, refused, lost: counts of the run; lost to the market.
        start_seconds: from an order to work, lately; inf: not known.
        speed: tokens per second of an instance with all the work it can take; 0: not known.
        failures: in a row.
        retry_at: it is asked for nothing before.
    """

    __slots__ = (
        "_losses",
        "_seconds",
        "_seen_at",
        "alive",
        "asked",
        "dollars",
        "failures",
        "granted",
        "lost",
        "members",
        "name",
        "paid",
        "present",
        "price",
        "refused",
        "reported_price",
        "retry_at",
        "speed",
        "standing",
        "start_seconds",
        "terms",
        "waiting",
    )

    def __init__(self, terms: PoolTerms, now: float) -> None:
        self.terms, self.name, self.price = terms, terms.name, terms.price
        self.present = self.standing = self.waiting = self.paid = self.members = 0
        self.asked = self.granted = self.refused = self.lost = 0
        self.alive, self.dollars = Integral(now), Integral(now)  # instance-seconds of members
        self._losses = self._seconds = 0.0  # that the hazard is learnt from; both fade
        self._seen_at = now
        self.start_seconds, self.speed = math.inf, 0.0
        self.failures, self.retry_at = 0, -math.inf
        self.reported_price: float | None = None

    @property
    def hazard(self) -> Hazard:
        return Hazard(self._losses, self._seconds)

    @property
    def known_start(self) -> float:
        """Seconds from an order to work; 0 if unknown."""
        return 0.0 if math.isinf(self.start_seconds) else self.start_seconds

    @property
    def single(self) -> bool:
        """Whether one instance is requested at a time, since the last ones came to nothing."""
        return self.failures >= self.terms.single_after

    def quick(self, lived: float) -> bool:
        """Whether an instance that was taken away after `lived` seconds came for nothing."""
        return lived < self.terms.quick_seconds + self.known_start

    def ask(self) -> None:
        """Count a request for an instance."""
        self.asked += 1
        self.present += 1

    def find(self) -> None:
        """Count an instance that an earlier manager requested, which is paid for."""
        self.present += 1
        self.paid += 1

    def grant(self) -> None:
        """Count an instance that was granted."""
        self.granted += 1
        self.paid += 1

    def stand(self) -> None:
        """Count an instance that is present or requested, and is to stay."""
        self.standing += 1
        self.waiting += 1

    def fall(self, *, joined: bool) -> None:
        """Count a standing instance that is doomed."""
        self.standing -= 1
        self.waiting -= not joined

    def come(self) -> None:
        """Count a waiting instance that has joined."""
        self.waiting -= 1

    def join(self, now: float) -> None:
        """Count an instance that has a stream."""
        self.account(now)
        self.members += 1

    def leave(self, now: float, *, by_market: bool) -> None:
        """Count an instance whose stream has ended."""
        self.account(now)
        self.members -= 1
        self.lost += by_market
        self._losses += by_market

    def end(self, *, paid: bool) -> None:
        """Count an instance that is over, whether or not it was granted."""
        self.present -= 1
        self.paid -= paid
        self.refused += not paid

    def serve(self) -> None:
        """Reset the pause: an instance was worth its start."""
        self.failures = 0

    def fail(self, now: float) -> None:
        """Delay the next request: an instance was refused, or ended without being of use."""
        self.failures += 1
        self.retry_at = now + backoff_seconds(
            self.failures - 1, first=FIRST_RETRY_SECONDS, longest=self.terms.longest_retry
        )

    def started(self, seconds: float) -> None:
        """Record the time from an order to a ready instance."""
        known = self.start_seconds if self.start_seconds < math.inf else seconds
        self.start_seconds = known + NEWEST_START * (seconds - known)

    def measure(self, speed: float) -> None:
        """Set the speed of an instance, in tokens per second."""
        self.speed = speed

    def reprice(self, price_per_hour: float) -> None:
        """Set the price of an instance from now on."""
        self.price = self.reported_price = price_per_hour

    def account(self, now: float) -> None:
        """Bring the time integrals up to date."""
        seconds = max(0.0, now - self._seen_at)
        if seconds:
            fade = math.exp(-seconds / FORGET_SECONDS)
            self._losses *= fade
            self._seconds = self._seconds * fade + self.members * seconds
            self._seen_at = now
        self.alive.set(self.members, now)
        self.dollars.set(self.paid * self.price / 3600, now)

    def mark(self) -> tuple[object, ...]:
        """A value that changes whenever `snapshot` does by more than passing time."""
        counts = self.asked, self.granted, self.refused, self.lost, self.paid, self.failures
        return *counts, self.price, self.speed, self.start_seconds

    def snapshot(self, now: float) -> PoolEntry:
        """State that outlives this manager, as a journal entry."""
        self.account(now)
        return PoolEntry(
            asked=self.asked,
            granted=self.granted,
            refused=self.refused,
            lost=self.lost,
            losses=self._losses,
            seconds=self._seconds,
            alive=self.alive.total(now),
            dollars=self.dollars.total(now),
            dollars_per_second=self.dollars.level,
            price=self.price,
            start_seconds=self.start_seconds,
            speed=self.speed,
            failures=self.failures,
            retry_in=max(0.0, self.retry_at - now),
        )

    def restore(self, entry: PoolEntry, since: float, now: float) -> None:
        """Restore from the journal. No server is connected yet.

        Args:
            since: seconds without a manager; what was paid for went on.
        """
        self.asked, self.granted, self.refused = entry.asked, entry.granted, entry.refused
        self.lost, self._losses, self._seconds = entry.lost, entry.losses, entry.seconds
        self._seen_at = now
        self.alive.resume(entry.alive, now)
        self.dollars.resume(entry.dollars + since * entry.dollars_per_second, now)
        self.price, self.speed = entry.price, entry.speed
        self.start_seconds, self.failures = entry.start_seconds, entry.failures
        self.retry_at = now + max(0.0, entry.retry_in - since) if entry.failures else -math.inf
