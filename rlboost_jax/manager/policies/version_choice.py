"""Policy version that each instance is to hold: a pure function.

With a lag several batches are open at once, each sampled from its own version, and an instance
holds one version at a time. Seven rules, the first that applies:

1. where newer versions want instances, the last rollouts of an older one are gathered at as few
   as have slots for them; the others go on to the newer one;
2. any other instance that holds rollouts of an open batch keeps its version; one that is loading an
   older version that needs it continues;
3. a free instance goes to the oldest version with rollouts that no instance samples, as many
   instances as these have slots to fill;
4. if no instance has a version with such rollouts and none is free, those with the fewest rollouts
   of a newer one go back, because the learner waits for the oldest batch;
5. an instance that would idle goes to the oldest version with rollouts queued for a slot elsewhere;
6. or that wait for instances which are all still on their way: one of these may never arrive (a
   device that hangs), and the batch would wait for it for ever;
7. all others take the newest version: its batch is begun next.

So a newer version takes an instance from the work of an older batch only where others stay that
can take it over, and an older batch always has an instance.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Work left in the open batches of one version."""

    unheld: int  # rollouts that nobody samples, now or as soon as they are given back
    queued: int = 0  # rollouts that wait at an instance for one of its slots
    rows: int = 0  # that an instance samples at once, at most; 0: nothing is gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Version and rollouts of one instance.

    Versions are named by their places among the demands, oldest first; None is any other.
    """

    announced: int | None  # the version that was announced to it
    holds: int | None = None  # the oldest version that it has rollouts of
    held: int = 0  # rollouts
    slots: int
    passing: bool = False  # a reserved engine: it hands over when its window ends
    arrived: bool = True  # it has loaded what was announced to it


def choose_versions(demands: Sequence[Demand], holders: Sequence[Holder]) -> list[int | None]:
    """The version for each instance, by its place among the demands; None: the newest there is.

    Args:
        demands: of the versions that open batches are sampled from, the oldest first.
    """
    chosen: list[int | None] = [None] * len(holders)
    free = [n for n, holder in enumerate(holders) if holder.holds is None]
    busy = [n for n, holder in enumerate(holders) if holder.holds is not None]
    queued: list[int] = []  # by version, what nobody has been chosen for
    for version, demand in enumerate(demands):
        for n, newer in _gathered(version, demands, holders, busy):
            chosen[n] = newer
            busy.remove(n)
        need = demand.unheld
        for n in [n for n in busy if holders[n].holds == version]:
            chosen[n] = version
            need -= max(0, holders[n].slots - holders[n].held)
            busy.remove(n)
        back = [n for n in busy if holders[n].announced == version]
        there = [n for n in free if holders[n].announced == version]
        for n in [*back, *there, *(n for n in free if n not in there)]:
            if need + (demand.queued if holders[n].announced == version else 0) > 0:
                chosen[n] = version
                need -= holders[n].slots
                (free if holders[n].holds is None else busy).remove(n)
        if demand.unheld > 0 and version not in chosen:
            for n in sorted(busy, key=lambda n: (holders[n].held, n)):
                if need > 0:
                    chosen[n] = version
                    need -= holders[n].slots
                    busy.remove(n)
        here = (h for h, place in zip(holders, chosen, strict=True) if place == version)
        if not any(holder.announced == version and holder.arrived for holder in here):
            need = demand.unheld
        queued.append(need + demand.queued)
    for version, left in enumerate(queued):
        for n in sorted(free, key=lambda n: holders[n].announced != version):
            if left > 0:
                chosen[n] = version
                left -= holders[n].slots
                free.remove(n)
    return chosen


def _gathered(
    version: int, demands: Sequence[Demand], holders: Sequence[Holder], busy: Sequence[int]
) -> list[tuple[int, int]]:
    """Instances that hand a version's last rollouts to others, and the version each goes to.

    As few rollouts as an instance holds then cost it nearly the time of many.
    """
    demand, place = demands[version], version + 1
    later = (p for p, d in enumerate(demands[place:], place) if d.unheld + d.queued > 0)
    newer = next(later, None)
    if not demand.rows or newer is None:
        return []
    here = [n for n in busy if holders[n].holds == version]
    rollouts = demand.unheld + sum(holders[n].held for n in here)
    kept = max(1, -(-rollouts // demand.rows))

    def stays(n: int) -> tuple[bool, bool, int, int]:
        holder = holders[n]
        return not holder.passing, holder.announced == version, holder.held, -n

    return [(n, newer) for n in sorted(here, key=stays, reverse=True)[kept:]]
