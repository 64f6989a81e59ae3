"""Announcements of versions to instances, as versions are published and work comes and goes.

Without a lag that is the newest, as it is published. With one, a newer version is announced to an
instance once the older open batches have nothing left for it or can do without it, and of an older
one where a rollout of that would find nobody: `policies.version_choice` says who; here is what it
is asked.
"""

from collections.abc import Collection, Mapping, Sequence

from rlboost_jax.manager.policies.version_choice import Demand, Holder, choose_versions
from rlboost_jax.manager.reducer.peer_weights import PeerWeights
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.messages import Manifest, Ready, SourcesUsed, WeightsRejected


class Announcements:
    def __init__(self, owners: Owners, seeding: SeedingWindow, peers: PeerWeights) -> None:
        self._peers = peers
        self._ledger = owners.ledger
        self._roster = owners.roster
        self._versions = owners.versions
        self._outbox = owners.outbox
        self._seeding = seeding
        self._announced_to_all: Manifest | None = None  # and nothing else to anybody

    def publish(self, manifest: Manifest) -> None:
        """Announce a version that was published."""
        self._versions.publish(manifest)
        if not self._older():
            self._announce_newest(again=True)
        elif self._ledger.lagging:
            for instance in self._roster:
                self._versions.prefetch(instance)

    def welcome(self, instance: Instance) -> None:
        """Announce a version to an instance that joined.

        With a choice of versions, `settle` does.
        """
        newest = self._versions.newest
        if newest is not None and not self._older():
            self._versions.announce(instance, newest)

    def fetched(self, instance: Instance, message: Ready) -> int:
        """Record the version that an instance has pulled; returns the bytes that it spared."""
        return self._versions.fetched(instance, message.version, message.fetched_bytes)

    def fared(self, instance: Instance, message: WeightsRejected | SourcesUsed, now: float) -> bool:
        """Record that a server could not have a version, or how its sources served it.

        It tries again, or goes on; returns whether it may need other sources.
        """
        if isinstance(message, SourcesUsed):
            self._peers.used(instance, message, now)
            return True
        instance.parameters.rejected(now)
        self._outbox.record(
            "rejected", instance.name, version=message.version, reason=message.reason
        )
        return False

    def settle(self) -> None:
        """Announce new versions to the instances that should switch."""
        newest = self._versions.newest
        if newest is None:
            return
        wanted = self._older()
        if not wanted:
            if self._announced_to_all is not newest:
                self._announce_newest(again=False)
            return
        self._announced_to_all = None
        if self._all_at_work(wanted):
            return
        instances = [i for i in self._roster if not (i.reserved or i.departure.leaving)]
        instances += self._seeding_engines  # last: work goes first where it may stay
        places = {batch: place for place, found in enumerate(wanted.values()) for batch in found}
        manifests = list(wanted)
        holders = [_holder(instance, places, manifests) for instance in instances]
        demands = self._demands(wanted, places)
        chosen = choose_versions(demands, holders)
        for instance, place in zip(instances, chosen, strict=True):
            manifest = newest if place is None else self._versions.manifests[manifests[place]]
            if instance.parameters.announced != manifest:
                self._versions.announce(instance, manifest)
                self._versions.prefetch(instance)

    @property
    def _seeding_engines(self) -> Collection[Instance]:
        """The reserved engines, while the seeding window is open."""
        return self._roster.index.reserved.values() if self._seeding.open else ()

    def _older(self) -> Mapping[int, list[BatchRecord]]:
        """Open batches of each version that can be announced, the oldest first.

        Empty if the newest version is the only one. A batch before the newest version is over: its
        update is in that version.
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

    def _announce_newest(self, *, again: bool) -> None:
        """Announce the newest version to instances.

        Args:
            again: also to instances it was announced to before, unless they hold it.
        """
        self._announced_to_all = newest = self._versions.newest
        for instance in self._roster:
            if newest is not None and (again or instance.parameters.announced != newest):
                self._versions.announce(instance, newest)

    def _all_at_work(self, wanted: Mapping[int, list[BatchRecord]]) -> bool:
        """Whether nothing has to be announced.

        All instances have work, each older batch has an instance and none is to be gathered. Asked
        at every event, so it does not look at each instance.
        """
        index, at_work = self._roster.index, 0
        seeding = self._seeding_engines
        if any(not engine.held for engine in seeding):
            return False
        newer = False  # batches have rollouts that wait
        for batches in reversed(list(wanted.values())):
            there = len(self._roster.pool(batches[0]).instances)
            there += sum(engine.ready_for(batches[0]) for engine in seeding)
            if at_work and not there and not all(batch.at_rest for batch in batches):
                return False
            if newer and there > 1 and _left(batches) <= self._rows(batches) * (there - 1):
                return False
            newer = newer or any(batch.num_waiting for batch in batches)
            at_work += there
        return not index.free and at_work == index.num_preemptible + len(seeding)

    def _demands(
        self, wanted: Mapping[int, list[BatchRecord]], places: Mapping[BatchRecord, int]
    ) -> list[Demand]:
        """Work left, by version.

        What the reserved engines hold is for others once their window is over.
        """
        unheld = [sum(batch.num_waiting for batch in found) for found in wanted.values()]
        queued = [0] * len(unheld)
        for instance in self._roster:
            place = _place(instance, places)
            if place is None:
                continue
            staying = len(instance.held) - instance.num_releasing
            unheld[place] += instance.num_releasing
            if not instance.reserved:
                queued[place] += max(0, staying - instance.room)
            elif not self._seeding.open:
                unheld[place] += staying
        rows = [self._rows(found) for found in wanted.values()]
        return [
            Demand(unheld=u, queued=q, rows=r) for u, q, r in zip(unheld, queued, rows, strict=True)
        ]

    def _rows(self, batches: Sequence[BatchRecord]) -> int:
        """Rollouts of some batches that one engine can sample at once; 0: none holds their version.

        A decode step with all slots full takes little longer than with half of them, and it is
        throughput that a lag is for: the learner does not wait for these as long as it trains.
        """
        there = self._roster.pool(batches[0]).instances
        return max((instance.last_room for instance in there), default=0)


def _left(batches: Sequence[BatchRecord]) -> int:
    """Number of rollouts of the batches that some instance holds."""
    return sum(len(b.rollouts) - b.num_dormant - b.num_waiting for b in batches)


def _holder(instance: Instance, places: Mapping[BatchRecord, int], versions: list[int]) -> Holder:
    announced = instance.parameters.announced
    known = announced is not None and announced.version in versions
    return Holder(
        announced=versions.index(announced.version) if announced is not None and known else None,
        holds=_place(instance, places),
        held=len(instance.held),
        slots=instance.last_room,
        passing=instance.reserved,
        arrived=announced is not None and instance.parameters.are(announced),
    )


def _place(instance: Instance, places: Mapping[BatchRecord, int]) -> int | None:
    """Place of the oldest version among an instance's rollouts; None if it holds none of these."""
    found = (places[r.batch] for r in instance.held.values() if r.batch in places)
    return min(found, default=None)
