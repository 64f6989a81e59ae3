"""Lease renewals: their news of a server and its connection, and the answers to them."""

from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.messages import Renew, Renewed


class LeaseRenewals:
    def __init__(self, owners: Owners) -> None:
        self._outbox = owners.outbox
        self._roster = owners.roster
        self._ledger = owners.ledger

    def renew(self, instance: Instance, message: Renew, now: float) -> str:
        """Answer a renewal. Returns why its server counts as lost instead; "" if it does not."""
        compiled = message.programs_compiled
        if compiled > instance.activity.programs_compiled and instance.may_remark(now):
            instance.activity.compiled(compiled)
            self._outbox.record("compiled", instance.name, programs=compiled)
        instance.parameters.renewed(message.pulled_bytes, now)
        if message.discarded:
            self._ledger.books.wasted(message.discarded, reserved=instance.reserved)
        if message.drafts is not None:
            seconds = instance.activity.drafted(message.drafts)
            dollars = seconds * self._roster.price_of(instance) / 3600
            self._ledger.books.draft(message.drafts, dollars)
        if reason := self._roster.why_unreachable(instance, message, now):
            return reason
        lease = self._roster.lease(instance)
        self._outbox.send(instance.stream, Renewed(stamp=now, lease_seconds=lease))
        self._say(instance, lease, now)
        return ""

    def _say(self, instance: Instance, lease: float, now: float) -> None:
        """Record a measured connection whose lease has changed; good connections give no event."""
        if instance.reserved or not instance.lease.tell(lease, self._roster.shortest_lease):
            return
        if instance.may_remark(now):
            line = instance.lease.line
            self._outbox.record(
                "line",
                instance.name,
                lease_seconds=round(lease, 3),
                round_trip=round(line.round_trip, 4),
                deviation=round(line.deviation, 4),
                losses=round(line.losses, 4),
            )
