"""Policy versions: which is the newest, and who holds or fetches which."""

from rlboost_jax.manager.journal import Published
from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.messages import Announce, Manifest
from rlboost_jax.sequences.identities import Version


class Versions:
    """
    Attributes:
        newest: None before the first.
        manifests: by version, of the newest and of older ones that are being fetched.
    """

    def __init__(self, roster: Roster, outbox: Outbox) -> None:
        self._roster = roster
        self._outbox = outbox
        self.newest: Manifest | None = None
        self.manifests: dict[int, Manifest] = {}

    def restore(self, entry: Published) -> None:
        """A journal tells of it."""
        self.newest = entry.manifest
        self.manifests[entry.manifest.version] = entry.manifest

    def publish(self, manifest: Manifest) -> None:
        """Announce a version to all that do not hold it."""
        self.newest = manifest
        fetched = self._fetched()
        self.manifests = {v: m for v, m in self.manifests.items() if v in fetched}
        self.manifests[manifest.version] = manifest
        self._outbox.keep(Published(manifest=manifest))
        self._outbox.record("published", version=manifest.version)
        for instance in self._roster:
            self.announce(instance)

    def announce(self, instance: Instance) -> None:
        """Reserved engines are handed their weights by the trainer; who leaves needs none."""
        if self.newest is None or instance.reserved or instance.departure.leaving:
            return
        if instance.announce(self.newest):
            self._outbox.send(instance.stream, Announce(manifest=self.newest))

    def fetched(self, instance: Instance, version: Version, num_bytes: int) -> None:
        """Pay for what an instance says it pulled of a version: once, and at most for all of it.
        Of pulls that were given up nothing is known here."""
        manifest = self.manifests.get(version)
        if manifest is not None and instance.parameters.pay(version):
            self._roster.pay_egress(min(num_bytes, manifest.num_bytes))

    def in_use(self) -> set[Version]:
        """Held, being fetched, or the newest: their snapshots must not be deleted."""
        held = (i.parameters.version for i in self._roster)
        versions = self._fetched().union(version for version in held if version is not None)
        return versions | ({self.newest.version} if self.newest is not None else set())

    def _fetched(self) -> set[Version]:
        announced = (i.parameters.announced for i in self._roster)
        return {manifest.version for manifest in announced if manifest is not None}
