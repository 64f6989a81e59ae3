"""Pool to request a missing instance from, and instances that cost more than they bring.

An instance of a pool costs its price for the time that it works, starts and starts again, and
brings its speed. What a second of work of the usual speed costs there is its *merit*: the lower the
better. Of fleets that are equally fast the one is cheapest that has filled its pools in the order
of merit, for what is spent on a worse one would bring more in a better one (a knapsack that may be
filled in parts). So sizes are searched along this one order (`ranked`), whatever pools there are.

What runs is worth a little more than what would have to be started (STICKY), lest two pools that
are alike take turns.

A pool that refuses, or whose instances go as soon as they come, is asked for nothing during a pause
(`state.pool_record` has its length), then for one instance at a time. Others are asked meanwhile.

A pool whose speed nobody has measured is tried with one instance, where that is wanted. Until then
it is taken to be as fast as the others on average.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

STICKY = 0.1  # of its merit, by which an instance that runs is better
EPSILON = 1e-9  # of dollars: prices are sums of binary fractions


@dataclass(frozen=True, kw_only=True)
class PoolOffer:
    """Offer of a pool at one moment.

    Attributes:
        price: dollars per hour of an instance.
        standing: instances that are there or asked for, and are to stay.
        waiting: those of them that have not joined.
        free: instances that it may be asked for besides.
        later: more instances that a size may count on, though they cannot be requested yet.
        speed: tokens per second of an instance that has all the work it can take; 0: not known.
        rate: losses of an instance per second.
        start_seconds: from an order to work, which is paid for.
        retry_at: it is not asked before.
        single: it is asked for one instance at a time.
    """

    name: str
    price: float
    standing: int = 0
    waiting: int = 0
    free: int = 0
    later: int = 0
    speed: float = 0.0
    rate: float = 0.0
    start_seconds: float = 0.0
    retry_at: float = -math.inf
    single: bool = False

    def may_take(self, now: float) -> int:
        """Number of instances that may be requested of the pool at this moment."""
        if now < self.retry_at:
            return 0
        return min(self.free, max(0, 1 - self.waiting)) if self.single else self.free


@dataclass(frozen=True)
class PoolRun:
    """Instances of one pool that are consecutive in the order of merit."""

    pool: str
    count: int
    standing: bool


def usual_speed(offers: Iterable[PoolOffer]) -> float:
    """Mean speed of the pools whose speed is known; 1 if none is."""
    known = [offer.speed for offer in offers if offer.speed > 0]
    return sum(known) / len(known) if known else 1.0


def merit(offer: PoolOffer, usual: float, *, pull: float = 0.0, step_seconds: float = 0.0) -> float:
    """Dollars per hour for work of the usual speed in a pool.

    Of the time that an instance is paid for, the share 1 / (1 + rate · start_seconds) is not spent
    on starting.

    Args:
        pull: dollars, to send an instance the weights of a version.
        step_seconds: from one version to the next; 0: not known.
    """
    pulls = offer.rate + (1.0 / step_seconds if step_seconds > 0 else 0.0)
    hourly = offer.price + 3600 * pull * pulls
    return hourly * (1.0 + offer.rate * offer.start_seconds) * usual / (offer.speed or usual)


def ranked(
    offers: Sequence[PoolOffer], now: float, *, pull: float = 0.0, step_seconds: float = 0.0
) -> tuple[PoolRun, ...]:
    """All present and possible instances, by merit."""
    usual = usual_speed(offers)
    runs = []
    for place, offer in enumerate(offers):
        worth = merit(offer, usual, pull=pull, step_seconds=step_seconds)
        standing, more = worth * (1.0 - STICKY), worth
        runs.append((standing, place, PoolRun(offer.name, offer.standing, standing=True)))
        count = offer.may_take(now) + offer.later
        runs.append((more, place, PoolRun(offer.name, count, standing=False)))
    return tuple(run for _, _, run in sorted(runs, key=lambda each: each[:2]) if run.count)


def mix(runs: Iterable[PoolRun], instances: int) -> dict[str, int]:
    """Number of instances of each pool among the first `instances`."""
    found: dict[str, int] = {}
    for run in runs:
        count = min(run.count, instances)
        if count > 0:
            found[run.pool] = found.get(run.pool, 0) + count
            instances -= count
    return found


def chosen(
    offers: Sequence[PoolOffer],
    missing: int,
    now: float,
    *,
    most: int,
    room: float = math.inf,
    wanted: Mapping[str, int] | None = None,
    explore: bool = False,
    pull: float = 0.0,
    step_seconds: float = 0.0,
) -> tuple[str, ...]:
    """Pool to request each new instance from.

    Args:
        missing: instances.
        most: instances that may be requested, missing or not.
        room: dollars per hour that they may cost together.
        wanted: instances by pool that are worth having: these are asked for first, even where
            others stand that they are to take the place of.
        explore: pools of unknown speed are tried first, missing or not.
    """
    usual = usual_speed(offers)
    order = sorted(
        offers, key=lambda o: merit(o, usual, pull=pull, step_seconds=step_seconds)
    )  # stable: equals in the order of the settings
    left = {offer.name: offer.may_take(now) for offer in order}
    found: list[str] = []

    def take(offer: PoolOffer, number: int) -> int:
        nonlocal most, room
        count = max(0, min(number, most, left[offer.name]))
        if offer.price > 0 and room < math.inf:
            count = min(count, max(0, math.floor(room / offer.price + EPSILON)))
            room -= count * offer.price
        left[offer.name] -= count
        most -= count
        found.extend([offer.name] * count)
        return count

    if explore:
        for offer in order:
            if not (offer.speed or offer.standing):
                missing -= take(offer, 1)
    if wanted is not None:
        for offer in order:
            short = wanted.get(offer.name, 0) - offer.standing - found.count(offer.name)
            missing -= take(offer, short)
    for offer in order:
        missing -= take(offer, missing)
    return tuple(found)


def surplus(
    offers: Sequence[PoolOffer], members: Mapping[str, int], wanted: Mapping[str, int]
) -> dict[str, int]:
    """Instances to release, by pool: unwanted ones, as far as the wanted ones are at work.

    Args:
        members: at work, by pool.
        wanted: worth having, by pool.
    """
    spare = sum(members.values()) - sum(wanted.values())
    usual = usual_speed(offers)
    found: dict[str, int] = {}
    for offer in sorted(offers, key=lambda each: merit(each, usual), reverse=True):
        beyond = members.get(offer.name, 0) - wanted.get(offer.name, 0)
        if (count := min(beyond, spare)) > 0:
            found[offer.name] = count
            spare -= count
    return found
