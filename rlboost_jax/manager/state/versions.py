"""Policy versions: the newest, and the instances that hold or fetch each."""

from rlboost_jax.manager.journal_entries import Published
from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.messages import Announce, BeginBatch, Manifest, Prefetch
from rlboost_jax.sequences.identities import Version


class Versions:
    """Record of published versions, and of the instances that need them.

    Attributes:
        newest: None before the first.
        manifests: by version, of the newest and of older ones that are being fetched, or that open
            batches are sampled from.
    """

    def __init__(self, roster: Roster, ledger: Ledger, outbox: Outbox, *, lag: int) -> None:
        """Start without a version.

        Args:
            lag: of the run.
        """
        self._lag = lag
        self._roster = roster
        self._ledger = ledger
        self._outbox = outbox
        self.newest: Manifest | None = None
        self.manifests: dict[int, Manifest] = {}
        self._before: set[int] = set()  # published before the trainer that is here came

    def restore(self, entry: Published) -> None:
        """Restore a published version from the journal.

        One of a release that announced no lists is published again by a trainer of this release.
        """
        if entry.manifest.list_sha256:
            self._take(entry.manifest)

    def publish(self, manifest: Manifest) -> None:
        """Record a version that is complete and can be fetched."""
        needed = self._fetched()
        if self._outbox.wanted is None:  # a trainer that is back begins its batches after this
            needed |= {Version(version) for version in self.manifests}
        if self._lag:
            needed |= {batch.begin.version for batch in self._ledger.open.values()}
        self.manifests = {v: m for v, m in self.manifests.items() if v in needed}
        self._take(manifest)
        self._outbox.keep(Published(manifest=manifest))
        self._outbox.record("published", version=manifest.version)

    def attached(self) -> None:
        """Note that a trainer has connected, perhaps again."""
        self._before = set(self.manifests)

    def begun(self, begin: BeginBatch) -> None:
        """Drop later versions that a trainer with a lag has gone back on.

        A trainer that begins a batch after a restart publishes the later versions anew; those it
        has not published since it connected no longer count.
        """
        gone = {v for v in self._before if v > begin.batch}
        if self._lag and gone:
            self._before -= gone
            self.manifests = {v: m for v, m in self.manifests.items() if v not in gone}
            self.newest = self.manifests[max(self.manifests)] if self.manifests else None

    def announce(self, instance: Instance, manifest: Manifest) -> None:
        """Announce a version to an instance that does not hold it.

        A leaving instance needs none. Without a lag there is no choice, and the trainer hands its
        reserved engines their weights before they are needed.
        """
        if instance.departure.leaving or (instance.reserved and not self._lag):
            return
        if instance.announce(manifest, back=manifest is not self.newest):
            self._roster.index.moved()
            self._outbox.send(instance.stream, Announce(manifest=manifest))

    def prefetch(self, instance: Instance) -> None:
        """Have an instance fetch in advance the version it will most likely hold next.

        That is the oldest version after the one announced to it. The trainer's engines have all of
        them at hand.
        """
        announced = instance.parameters.announced
        if announced is None or instance.reserved or instance.departure.leaving:
            return
        later = [version for version in self.manifests if version > announced.version]
        if later and instance.prefetch(manifest := self.manifests[min(later)]):
            self._roster.index.moved()
            self._outbox.send(instance.stream, Prefetch(manifest=manifest))

    def _take(self, manifest: Manifest) -> None:
        """Add a manifest. With a lag it may be of an older version, which open batches need."""
        newest = self.newest
        if not (self._lag and newest is not None and manifest.version < newest.version):
            self.newest = manifest
        self.manifests[manifest.version] = manifest
        self._before.discard(manifest.version)

    def fetched(self, instance: Instance, version: Version, num_bytes: int) -> int:
        """Charge for the reported bytes of a version: once, and at most for all of it.

        Abandoned pulls are not known here.

        Returns:
            Bytes of the version that did not have to come.
        """
        manifest = self.manifests.get(version)
        if manifest is None:
            return 0
        if instance.parameters.pay(version):
            self._roster.pay_egress(min(num_bytes, manifest.num_bytes))
        return max(0, manifest.num_bytes - num_bytes)

    def in_use(self) -> set[Version]:
        """Versions held, being fetched, or newest: their snapshots must not be deleted."""
        held = (i.parameters.version for i in self._roster)
        versions = self._fetched().union(version for version in held if version is not None)
        return versions | ({self.newest.version} if self.newest is not None else set())

    def _fetched(self) -> set[Version]:
        announced = (i.parameters.announced for i in self._roster)
        return {manifest.version for manifest in announced if manifest is not None}
