"""Which version every instance is told to hold, as versions are published and work comes and goes.

Without a lag that is the newest, told as it is published. With one, an instance is told of a newer
version once the older open batches have nothing left for it or can do without it, and of an older
one where a rollout of that would find nobody: `policies.version_choice` says who; here is what it
is asked.
"""

from collections.abc import Mapping, Sequence

from rlboost_jax.manager.policies.throughput import ThroughputProfile
from rlboost_jax.manager.policies.version_choice import Demand, Holder, choose_versions
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.messages import Manifest, Ready


class Directions:
    def __init__(self, owners: Owners, seeding: SeedingWindow, profile: ThroughputProfile) -> None:
        self._profile = profile
        self._ledger = owners.ledger
        self._roster = owners.roster
        self._versions = owners.versions
        self._seeding = seeding
        self._told_all: Manifest | None = None  # and nobody anything else

    def publish(self, manifest: Manifest) -> None:
        """A version is there."""
        self._versions.publish(manifest)
        if not self._older():
            self._tell_newest(again=True)

    def welcome(self, instance: Instance) -> None:
        """It has joined. Where there is a choice, `settle` makes it."""
        newest = self._versions.newest
        if newest is not None and not self._older():
            self._versions.tell(instance, newest)

    def fetched(self, instance: Instance, message: Ready) -> None:
        """It says what it has pulled."""
        self._versions.fetched(instance, message.version, message.fetched_bytes)

    def settle(self, now: float) -> None:
        """Tell those who are to hold something else from now on."""
        newest = self._versions.newest
        if newest is None:
            return
        wanted = self._older()
        if not wanted:
            if self._told_all is not newest:
                self._tell_newest(again=False)
            return
        self._told_all = None
        if self._all_at_work(wanted):
            return
        instances = [i for i in self._roster if not (i.reserved or i.departure.leaving)]
        places = {batch: place for place, found in enumerate(wanted.values()) for batch in found}
        manifests = list(wanted)
        holders = [_holder(instance, places, manifests) for instance in instances]
        demands = self._demands(wanted, places, now)
        chosen = choose_versions(demands, holders)
        for instance, place in zip(instances, chosen, strict=True):
            manifest = newest if place is None else self._versions.manifests[manifests[place]]
            if instance.parameters.announced != manifest:
                self._versions.tell(instance, manifest)

    def _older(self) -> Mapping[int, list[BatchRecord]]:
        """The open batches of each version that instances can be told to hold, the oldest first;
        empty where that is the newest alone.

        A batch before the newest version is over: its update is in that version.
        """
        newest, ledger = self._versions.newest, self._ledger
        if newest is None or not ledger.lagging:
            return {}
        wanted: dict[int, list[BatchRecord]] = {}
        for number, batch in ledger.open.items():
            version = batch.begin.version
            manifest = self._versions.manifests.get(version)
            known = manifest is not None and manifest.params_digest == batch.begin.params_digest
            if known and version <= newest.version <= number:
                wanted.setdefault(version, []).append(batch)
        return wanted if any(version != newest.version for version in wanted) else {}

    def _tell_newest(self, *, again: bool) -> None:
        """Args:
        again: those who were told just that as well, unless they hold it.
        """
        self._told_all = newest = self._versions.newest
        for instance in self._roster:
            if newest is not None and (again or instance.parameters.announced != newest):
                self._versions.tell(instance, newest)

    def _all_at_work(self, wanted: Mapping[int, list[BatchRecord]]) -> bool:
        """Whether nobody is to be told anything: all have work, no older batch is without anybody
        and none is to be gathered. Asked at every event, so it does not look at each instance."""
        index, at_work = self._roster.index, 0
        newer = False  # batches have rollouts that wait
        for batches in reversed(list(wanted.values())):
            there = len(self._roster.pool(batches[0]).instances)
            if at_work and not there and not all(batch.at_rest for batch in batches):
                return False
            if newer and there > 1 and _left(batches) <= self._rows(batches) * (there - 1):
                return False
            newer = newer or any(batch.num_waiting for batch in batches)
            at_work += there
        return not index.free and at_work == index.num_preemptible

    def _demands(
        self, wanted: Mapping[int, list[BatchRecord]], places: Mapping[BatchRecord, int], now: float
    ) -> list[Demand]:
        """What there is to do, by version.

        What the reserved engines hold is for others as soon as their window is over.
        """
        unheld = [sum(batch.num_waiting for batch in found) for found in wanted.values()]
        queued = [0] * len(unheld)
        clock = self._seeding.clock
        working = clock.open and not clock.reopened and now < clock.until
        for instance in self._roster:
            place = _place(instance, places)
            if place is None:
                continue
            staying = len(instance.held) - instance.num_releasing
            unheld[place] += instance.num_releasing
            if not instance.reserved:
                queued[place] += max(0, staying - instance.slots)
            elif not working:
                unheld[place] += staying
        rows = [self._rows(found) for found in wanted.values()]
        return [
            Demand(unheld=u, queued=q, rows=r) for u, q, r in zip(unheld, queued, rows, strict=True)
        ]

    def _rows(self, batches: Sequence[BatchRecord]) -> int:
        """Rollouts of some batches that an instance is worth, as far as is known; else 0.

        Its slots at most: with shorter contexts than were measured it may be worth more.
        """
        busiest = max(
            self._roster.pool(batches[0]).instances, key=lambda i: len(i.held), default=None
        )
        if busiest is None:
            return 0
        return min(busiest.slots, self._profile.plateau(busiest.kind, context=busiest.context))


def _left(batches: Sequence[BatchRecord]) -> int:
    """Rollouts of some batches that somebody has."""
    return sum(len(b.rollouts) - b.num_dormant - b.num_waiting for b in batches)


def _holder(instance: Instance, places: Mapping[BatchRecord, int], versions: list[int]) -> Holder:
    announced = instance.parameters.announced
    known = announced is not None and announced.version in versions
    return Holder(
        told=versions.index(announced.version) if announced is not None and known else None,
        holds=_place(instance, places),
        held=len(instance.held),
        slots=instance.slots,
    )


def _place(instance: Instance, places: Mapping[BatchRecord, int]) -> int | None:
    """Of the version that its rollouts are of."""
    found = (places[r.batch] for r in instance.held.values() if r.batch in places)
    return next(found, None)
