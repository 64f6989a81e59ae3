"""Read-only view of the manager's records."""

from collections.abc import Iterable, Mapping

from rlboost_jax.manager.accounts import Books
from rlboost_jax.manager.reducer.components import Components
from rlboost_jax.manager.state.fleet_machines import Fleet
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.messages import FleetStatus, Manifest, WindowState
from rlboost_jax.sequences.identities import Batch, Version


class View:
    def __init__(self, owners: Owners, components: Components) -> None:
        self._owners = owners
        self._components = components

    @property
    def batch(self) -> BatchRecord | None:
        """The active batch: the oldest open one."""
        return self._owners.ledger.active

    @property
    def open(self) -> Mapping[Batch, BatchRecord]:
        """All open batches by number, the oldest first."""
        return self._owners.ledger.open

    @property
    def batches(self) -> Mapping[Batch, BatchRecord]:
        """All batches that are kept, by number."""
        return self._owners.ledger.batches

    @property
    def kept(self) -> tuple[Batch, ...]:
        """Numbers of the batches that are kept."""
        return self._owners.ledger.kept

    @property
    def books(self) -> Books:
        """Counts of the active step, or of the time since the last one."""
        return self._owners.ledger.books

    @property
    def instances(self) -> Mapping[int, Instance]:
        """Instances by stream, in the order in which they joined."""
        return self._owners.roster.streams

    @property
    def roster(self) -> Roster:
        return self._owners.roster

    @property
    def fleet(self) -> Fleet:
        return self._owners.fleet

    @property
    def window(self) -> WindowState:
        """Window state for the next step."""
        return self._components.control.window

    def eligible(self, batch: BatchRecord) -> tuple[Iterable[Instance], Iterable[Instance]]:
        """Reserved and preemptible instances that can work on a step."""
        return self._components.dispatch.reserved(batch), self._components.dispatch.remote(batch)

    @property
    def window_open(self) -> bool:
        """Whether the reserved engines generate."""
        return self._components.seeding.open

    @property
    def manifests(self) -> Mapping[int, Manifest]:
        """Manifests by version: the newest, and older ones being fetched or needed."""
        return self._owners.versions.manifests

    @property
    def served(self) -> Iterable[Manifest]:
        """What can be fetched now: versions of the policy, and teachers."""
        return *self.manifests.values(), *self._components.servers.scores.manifests

    @property
    def versions_in_use(self) -> tuple[Version, ...]:
        """Versions whose snapshots must not be deleted; those of open batches are among them."""
        begun = {batch.begin.version for batch in self.open.values()}
        return tuple(sorted(self._owners.versions.in_use() | begun))

    def status(self, now: float) -> FleetStatus:
        batch, roster = self.batch, self._owners.roster
        return FleetStatus(
            instances=tuple(
                i.status(roster.lease(i), now, price=roster.price_of(i)) for i in roster
            ),
            finished=batch.num_finished if batch else 0,
            total=len(batch.rollouts) if batch else 0,
            window_open=self.window_open,
            window_seconds=self.window.seconds,
            joined=roster.joined,
            lost=roster.lost,
            left=roster.left,
            versions_in_use=self.versions_in_use,
            cost_dollars=roster.cost.total(now),
            starting=self.fleet.starting,
            quarantined=len(self._components.servers.quarantined),
        )
