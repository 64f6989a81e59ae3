"""Servers that fetch a version from each other: who is sent to whom, as they come and go."""

from rlboost_jax.manager.policies.weight_sources import PeerSources, VersionPeer, plan_sources
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.server_names import identity
from rlboost_jax.messages import FetchFrom, Manifest, PieceSource, SourcesUsed
from rlboost_jax.sequences.identities import Version
from rlboost_jax.trust.seal import root_of
from rlboost_jax.trust.transfers import transfer_token


class PeerWeights:
    """Sends servers that fetch a version to others that have pieces of it.

    A server is one of them if its `Hello` offers it. Which sources it gets the policy says
    (`policies.weight_sources`); a token for each goes with them.
    """

    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._on = settings.peers
        self._roster, self._versions = owners.roster, owners.versions
        self._peers, self._outbox = owners.peers, owners.outbox
        self._looked = -1
        self._roots: dict[Version, tuple[Manifest, str]] = {}

    def settle(self) -> None:
        """Hand out sources to servers that fetch, and others where a source is gone."""
        moves = self._roster.index.moves
        if not self._on or (moves == self._looked and not self._peers.changed):
            return
        self._looked = moves
        # One that has dialled again may have an older stream, too, which is not known to be dead.
        newest = {identity(i.hello): i for i in self._roster if i.hello.peer and not i.reserved}
        there = {instance.name: instance for instance in newest.values()}
        self._peers.keep(there)
        self._peers.settled()
        wanted = {manifest.version: manifest for i in there.values() if (manifest := _fetches(i))}
        self._roots = {v: known for v, known in self._roots.items() if v in wanted}
        for manifest in wanted.values():
            self._plan(manifest, there)

    def used(self, instance: Instance, message: SourcesUsed, now: float) -> None:
        """Record what a server says of its sources; what it says too often is passed over."""
        if not self._peers.may_say(instance.name, now):
            return
        known = [o for o in message.outcomes if self._peers.used(instance.name, message.root, o)]
        self._outbox.record(
            "exchanged",
            instance.name,
            peer_bytes=sum(outcome.fetched_bytes for outcome in known),
            outside_bytes=message.outside_bytes,
            wasted_bytes=message.wasted_bytes,
            faults={outcome.source: outcome.fault for outcome in known if outcome.fault},
        )

    def _plan(self, manifest: Manifest, there: dict[str, Instance]) -> None:
        root = self._root(manifest)
        members = {
            name: instance
            for name, instance in there.items()
            if _fetches(instance) is manifest or instance.parameters.are(manifest)
        }
        fetching = {name for name, i in members.items() if _fetches(i) is manifest}
        before = self._peers.handed(root, members.keys())
        loads = self._peers.loads({name: before[name] for name in fetching & before.keys()})
        peers = [
            VersionPeer(
                name=name,
                zone=instance.hello.zone,
                listens=self._listens(instance),
                whole=name not in fetching,
                rate=self._peers.rate(name),
                load=loads[name],
                refused=self._peers.refused(name),
            )
            for name, instance in members.items()
        ]
        usable = {peer.name for peer in peers if peer.listens}
        lacking = {
            name
            for name in fetching & before.keys()
            if not {*before[name].near, *before[name].far} <= usable - {*self._peers.refused(name)}
        }
        wanting = lacking | (fetching - before.keys())
        zone = next((i.hello.zone for i in self._roster if i.reserved), "")
        found = plan_sources(peers, before=before, wanting=wanting, trainer_zone=zone)
        for name, sources in found.items():
            if before.get(name) != sources:
                self._peers.hand(name, root, sources)
                self._tell(members[name], root, sources, there)

    def _listens(self, instance: Instance) -> bool:
        offer = instance.hello.peer
        able = offer is not None and offer.address != "" and len(offer.key) > 0
        return able and not instance.departure.leaving and not self._peers.shunned(instance.name)

    def _tell(
        self, instance: Instance, root: str, sources: PeerSources, there: dict[str, Instance]
    ) -> None:
        named = []
        for name in (*sources.near, *sources.far):
            offer = there[name].hello.peer
            assert offer is not None
            named.append(
                PieceSource(
                    name=name,
                    address=offer.address,
                    certificate=offer.certificate,
                    token=transfer_token(offer.key, instance.name, root),
                    near=name in sources.near,
                )
            )
        parts = sum(1 << part for part in sources.parts)
        self._outbox.send(instance.stream, FetchFrom(root=root, sources=tuple(named), parts=parts))

    def _root(self, manifest: Manifest) -> str:
        known = self._roots.get(manifest.version)
        if known is None or known[0] is not manifest:
            known = self._roots[manifest.version] = manifest, root_of(manifest)
        return known[1]


def _fetches(instance: Instance) -> Manifest | None:
    """The version that a server fetches: what was announced to it, else what it is to have next."""
    parameters = instance.parameters
    if instance.departure.leaving or parameters.announced is None:
        return None
    return parameters.prefetched if parameters.are(parameters.announced) else parameters.announced
