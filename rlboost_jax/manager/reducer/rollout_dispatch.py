"""Placement of rollouts on instances, and moves between instances.

`settle` runs after every event that may have made room, work or a ready instance. There
is no tick: a waiting rollout goes as soon as an eligible instance has room.
"""

import math
from collections.abc import Sequence

from rlboost_jax.manager.policies.order import RANKINGS
from rlboost_jax.manager.policies.placement import (
    InstancePace,
    Load,
    assign,
    even_moves,
    pending_moves,
    places,
    room,
    running_moves,
)
from rlboost_jax.manager.policies.returning import PREFILLED, Home, goes_back
from rlboost_jax.manager.policies.throughput import ThroughputProfile
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.reducer.sibling_placement import SiblingPlacement
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout

EVEN_SECONDS = 1.0  # between two looks at who ends last


class RolloutDispatch:
    def __init__(
        self,
        settings: Settings,
        owners: Owners,
        placements: Placements,
        seeding: SeedingWindow,
        profile: ThroughputProfile,
        plans: StepPlans,
    ) -> None:
        self._settings = settings.manager
        self._routes_by_speed = settings.routes_by_speed
        self._ledger = owners.ledger
        self._roster = owners.roster
        self._placements = placements
        self._seeding = seeding
        self._profile = profile
        self._plans = plans
        # Batches whose queue was put in order last, with how many had finished then.
        self._ranked: dict[BatchRecord, int] = {}
        self._siblings = SiblingPlacement(owners.ledger) if settings.siblings_follow else None
        self._evened_at = -math.inf

    def settle(self, batches: Sequence[BatchRecord], now: float) -> None:
        """Place, balance and move the rollouts of open batches as far as possible now.

        Args:
            batches: the oldest first. The window is that one's; the later ones get what it leaves.
        """
        self._settle_oldest(batches[0], now)
        for batch in batches[1:]:
            if not batch.finished:
                self._settle(batch, self.remote(batch), self._seeding_for(batch), now)

    def _settle_oldest(self, batch: BatchRecord, now: float) -> None:
        reserved, remote = self.reserved(batch), self.remote(batch)
        others = self._others(batch) if self._ledger.lagging else bool(remote)
        self._seeding.close_or_reopen(batch, reserved, now, others=others)
        if batch.finished:
            return
        seeding = reserved if self._seeding.open else []
        self._settle(batch, remote, seeding, now)
        idle = seeding and not any(i.held for i in seeding)
        # With a lag reserved engines have work of later batches, or soon will.
        if remote and idle and not (batch.num_waiting or self._ledger.lagging):
            self._seeding.close(batch, "reserved engines have nothing left", now)

    def _settle(
        self, batch: BatchRecord, remote: list[Instance], seeding: list[Instance], now: float
    ) -> None:
        if batch.num_waiting:
            self._rank(batch)
            if batch.begin.turns > 1:
                self._return_to_pages(batch, [*remote, *seeding], now)
            self._place(batch, [*remote, *seeding], now)
        if self._settings.balance and not batch.num_waiting:
            self._balance(batch, remote, seeding, now)

    def resume(self, batch: BatchRecord, rollout: Rollout, now: float) -> None:
        """Place an answered rollout back at its former instance if that pays, or queue it."""
        there = [*self.remote(batch), *self._seeding_for(batch)]
        known = next((i for i in there if i.name == rollout.placement.previous), None)
        if known is not None and self._goes_back(rollout, known, there):
            self._placements.generate(batch, known, [rollout], now)
        else:
            batch.wait(rollout)

    def _goes_back(self, rollout: Rollout, home: Instance, there: Sequence[Instance]) -> bool:
        """Whether an answered rollout should return to its former instance."""
        place = Home(
            slots=home.room,
            held=len(home.held),
            most_held=home.room + max(home.room, self._settings.max_pending),
            slot_seconds=home.activity.slot_seconds,
        )
        elsewhere = place.held >= place.slots and any(len(i.held) < i.room for i in there)
        rates = self._plans.model.rates(home)
        seconds = home.activity.token_seconds / PREFILLED if rates is None else rates.prefill
        saved = rollout.placement.kept_in(home.pages)
        return goes_back(saved, place, elsewhere=elsewhere, prefill_seconds=seconds)

    def _return_to_pages(
        self, batch: BatchRecord, eligible: Sequence[Instance], now: float
    ) -> None:
        """Place waiting rollouts where their pages are, before they go anywhere else."""
        for instance in eligible:
            while (rollout := batch.first_of(instance.name)) is not None:
                if not self._goes_back(rollout, instance, eligible):
                    break
                batch.take_first_of(instance.name)
                self._placements.generate(batch, instance, [rollout], now)

    def wake_at(self, batch: BatchRecord) -> float:
        """When `settle` may have work though no event comes; inf: never."""
        clock = self._seeding.clock
        if not clock.open or clock.until == math.inf:
            return math.inf
        return clock.until if self._others(batch) else math.inf

    def reserved(self, batch: BatchRecord) -> list[Instance]:
        """Reserved engines that can work on a step."""
        return [i for i in self._roster.index.reserved.values() if i.ready_for(batch)]

    def _seeding_for(self, batch: BatchRecord) -> list[Instance]:
        """Reserved engines that work on the batch now; none once the window is closed."""
        return self.reserved(batch) if self._seeding.open else []

    def remote(self, batch: BatchRecord) -> list[Instance]:
        """Preemptible instances that can work on a step, in the order in which they joined.

        The roster's own list: to be read at once, and by nobody changed.
        """
        if not self._roster.trusting:
            return []
        instances = self._roster.pool(batch).instances
        if not self._ledger.lagging:
            return instances
        return [i for i in instances if i.parameters.staying]

    def _others(self, batch: BatchRecord) -> bool:
        """Whether preemptible instances can continue the oldest batch.

        With a lag they may all hold other versions, and some will come back for it.
        """
        if self._ledger.lagging:
            return self._roster.trusting and any(i.member for i in self._roster)
        return bool(self.remote(batch))

    @property
    def engines(self) -> tuple[list[Instance], list[Instance]]:
        """Reserved and preemptible instances that a step can count on, ready for it or not yet."""
        reserved = self._roster.index.reserved.values() if self._settings.seeding else ()
        return list(reserved), [i for i in self._roster if i.member]

    def _rank(self, batch: BatchRecord) -> None:
        """Reorder the queue once enough responses have ended to predict the rest better."""
        if not self._plans.by_length:
            if self._siblings is not None:
                self._siblings.rank(batch)
            return
        finished = self._ranked.get(batch, 0)
        news = (batch.num_finished - finished) * RANKINGS >= len(batch.rollouts)
        if batch not in self._ranked or news:
            others = {b: n for b, n in self._ranked.items() if self._ledger.works_on(b)}
            self._ranked = {**others, batch: batch.num_finished}
            slots = sum(i.room for side in self.engines for i in side)
            batch.rank(self._plans.ranks(batch, slots))

    def _place(self, batch: BatchRecord, eligible: list[Instance], now: float) -> None:
        limit = self._settings.max_pending
        if all(len(i.held) >= i.room + limit for i in eligible):
            return  # nearly always, while anything waits
        paces = self._paces(eligible) if self._by_speed else [None] * len(eligible)
        loads = [
            Load(slots=i.room, held=len(i.held), groups=i.groups, pace=pace)
            for i, pace in zip(eligible, paces, strict=True)
        ]
        count = min(batch.num_waiting, room(loads, limit))
        if self._siblings is not None and not self._plans.by_length:
            chosen = places(count, loads, max_pending=limit)
            rollouts = self._siblings.take(batch, [eligible[index].name for index in chosen])
        else:
            rollouts = batch.take(count)
            chosen = assign(
                [r.group for r in rollouts],
                loads,
                max_pending=limit,
                group_size=batch.begin.group_size,
                begun={n for n, r in enumerate(rollouts) if r.sequences.begun},
            )
        batches: dict[int, list[Rollout]] = {}
        for rollout, index in zip(rollouts, chosen, strict=True):
            batches.setdefault(index, []).append(rollout)
        for index in sorted(batches):
            self._placements.generate(batch, eligible[index], batches[index], now)

    def _paces(self, instances: Sequence[Instance]) -> list[InstancePace | None]:
        return [self._plans.model.pace(instance) for instance in instances]

    @property
    def _by_speed(self) -> bool:
        """Whether to place by pace.

        Among equally fast instances fewest pending is the same and cheaper.
        """
        return self._routes_by_speed and self._plans.model.mixed

    def _even_out(self, batch: BatchRecord, eligible: Sequence[Instance], now: float) -> bool:
        """Move rollouts from the last instances to end to much earlier ones.

        Returns whether any moves.
        """
        if now < self._evened_at + EVEN_SECONDS or not self._routes_by_speed:
            return False
        self._evened_at = now
        loads = [
            Load(slots=i.room, held=len(i.held), pace=pace)
            for i, pace in zip(eligible, self._paces(eligible), strict=True)
        ]
        moves = even_moves(loads)
        for instance, count in zip(eligible, moves, strict=True):
            if count:
                self._placements.release(instance, instance.shortest(batch, count), now)
        return any(moves)

    def _held_for(self, batch: BatchRecord, instance: Instance) -> int:
        """Rollouts that an instance should keep, less those of other batches pending there.

        Instances for this batch may not be allowed to run the others.
        """
        staying = len(instance.held) - instance.num_releasing
        if staying <= instance.room or not self._ledger.lagging:
            return staying
        return max(instance.room, staying - instance.pending_of_others(batch))

    def _balance(
        self,
        batch: BatchRecord,
        remote: Sequence[Instance],
        seeding: Sequence[Instance],
        now: float,
    ) -> None:
        """Continuous load balancing: pending rollouts first, then running ones.

        One that holds no more than its room has nothing pending, and one that holds one rollout
        at most has none to spare: only the others are looked at.
        """
        index = self._roster.index
        pool = self._roster.pool(batch) if remote else None

        def works(instance: Instance) -> bool:
            if instance.reserved:
                return instance in seeding
            return pool is not None and index.works_with(instance, pool)

        if index.overfull and any(works(instance) for instance in index.overfull.values()):
            eligible = [*remote, *seeding]
            loads = [Load(slots=i.room, held=self._held_for(batch, i)) for i in eligible]
            moves = pending_moves(loads, index.num_releasing)
            for instance, count in zip(eligible, moves, strict=True):
                if count:  # who came back to its pages waits for a slot here
                    pending = instance.newest_pending(count, batch)
                    unspared = [r for r in pending if not r.placement.spared]
                    self._placements.release(instance, unspared, now)
        elif index.num_releasing or self._even_out(batch, [*remote, *seeding], now):
            return
        elif self._by_speed:
            return  # who is idle is so for being slow
        elif pool is not None and pool.idle:
            crowded = [instance for instance in index.crowded.values() if works(instance)]
            if not crowded:
                return
            busiest = min(crowded, key=lambda i: (-min(len(i.held), i.room), i.reserved, i.order))
            plateau = self._profile.plateau(busiest.kind, context=busiest.context)
            load = Load(slots=busiest.room, held=len(busiest.held), plateau=plateau)
            if count := running_moves(load, pool.idle):
                self._placements.release(busiest, busiest.shortest(batch, count), now)
