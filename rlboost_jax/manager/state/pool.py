"""One pool: what it was asked for, what came of it, what that costs, and how long it is to rest."""

import math

from rlboost_jax.backoff import backoff_seconds
from rlboost_jax.manager.accounts import Integral
from rlboost_jax.manager.journal import PoolEntry
from rlboost_jax.manager.policies.fleet_size import Hazard

FIRST_RETRY_SECONDS = 0.5  # after a server ended that gave no token; doubles each time
NEWEST_START = 0.3  # weight of the last start-up
FORGET_SECONDS = 4 * 3600.0  # in which what was learnt of losses fades to 1 / e


class PoolRecord:
    """
    Args:
        longest_retry: seconds, of a pause.

    Attributes:
        most: instances, by the settings.
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
        "_longest_retry",
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
        "most",
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
        "waiting",
    )

    def __init__(
        self, name: str, *, most: int, price: float, longest_retry: float, now: float
    ) -> None:
        self.name, self.most, self.price = name, most, price
        self.present = self.standing = self.waiting = self.paid = self.members = 0
        self.asked = self.granted = self.refused = self.lost = 0
        self.alive, self.dollars = Integral(now), Integral(now)  # instance-seconds of members
        self._losses = self._seconds = 0.0  # that the hazard is learnt from; both fade
        self._seen_at = now
        self.start_seconds, self.speed = math.inf, 0.0
        self.failures, self.retry_at = 0, -math.inf
        self._longest_retry = longest_retry
        self.reported_price: float | None = None

    @property
    def hazard(self) -> Hazard:
        return Hazard(self._losses, self._seconds)

    @property
    def known_start(self) -> float:
        """Seconds from an order to work; 0 where nothing is known."""
        return 0.0 if math.isinf(self.start_seconds) else self.start_seconds

    def ask(self) -> None:
        """It is asked for an instance."""
        self.asked += 1
        self.present += 1

    def find(self) -> None:
        """It has an instance of an earlier manager's, which is paid for."""
        self.present += 1
        self.paid += 1

    def grant(self) -> None:
        """It has granted one."""
        self.granted += 1
        self.paid += 1

    def stand(self) -> None:
        """One more is there or asked for, and is to stay."""
        self.standing += 1
        self.waiting += 1

    def fall(self, *, joined: bool) -> None:
        """An instance that stood is doomed."""
        self.standing -= 1
        self.waiting -= not joined

    def come(self) -> None:
        """An instance that waited has joined."""
        self.waiting -= 1

    def join(self, now: float) -> None:
        """One has a stream."""
        self.account(now)
        self.members += 1

    def leave(self, now: float, *, by_market: bool) -> None:
        """A stream is over."""
        self.account(now)
        self.members -= 1
        self.lost += by_market
        self._losses += by_market

    def end(self, *, paid: bool) -> None:
        """One is over, whether it was granted or not."""
        self.present -= 1
        self.paid -= paid
        self.refused += not paid

    def serve(self) -> None:
        """One was worth its start."""
        self.failures = 0

    def fail(self, now: float) -> None:
        """One was refused, or ended without having been of use: the next one waits."""
        self.failures += 1
        self.retry_at = now + backoff_seconds(
            self.failures - 1, first=FIRST_RETRY_SECONDS, longest=self._longest_retry
        )

    def started(self, seconds: float) -> None:
        """One was ready so long after it was asked for."""
        known = self.start_seconds if self.start_seconds < math.inf else seconds
        self.start_seconds = known + NEWEST_START * (seconds - known)

    def measure(self, speed: float) -> None:
        """They come to so many tokens per second each."""
        self.speed = speed

    def reprice(self, price_per_hour: float) -> None:
        """What one costs from now on."""
        self.price = self.reported_price = price_per_hour

    def account(self, now: float) -> None:
        """Bring the sums over time up to date."""
        seconds = max(0.0, now - self._seen_at)
        if seconds:
            fade = math.exp(-seconds / FORGET_SECONDS)
            self._losses *= fade
            self._seconds = self._seconds * fade + self.members * seconds
            self._seen_at = now
        self.alive.set(self.members, now)
        self.dollars.set(self.paid * self.price / 3600, now)

    def mark(self) -> tuple[object, ...]:
        """Another whenever `snapshot` has changed by more than time going by."""
        counts = self.asked, self.granted, self.refused, self.lost, self.paid, self.failures
        return *counts, self.price, self.speed, self.start_seconds

    def snapshot(self, now: float) -> PoolEntry:
        """What outlives this manager."""
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
        """Nobody is connected yet.

        Args:
            since: seconds that nobody was there; what was paid for went on.
        """
        self.asked, self.granted, self.refused = entry.asked, entry.granted, entry.refused
        self.lost, self._losses, self._seconds = entry.lost, entry.losses, entry.seconds
        self._seen_at = now
        self.alive.resume(entry.alive, now)
        self.dollars.resume(entry.dollars + since * entry.dollars_per_second, now)
        self.price, self.speed = entry.price, entry.speed
        self.start_seconds, self.failures = entry.start_seconds, entry.failures
        self.retry_at = now + max(0.0, entry.retry_in - since) if entry.failures else -math.inf
