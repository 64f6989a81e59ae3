"""Machines that the market lends and takes, and servers requested, ended and forgotten."""

from typing import Any, assert_never

from rlboost_jax.manager.events import MachineRemoved
from rlboost_jax.manager.policies.machines import victim
from rlboost_jax.manager.reducer.purchases import Purchases
from rlboost_jax.manager.reducer.window_control import WindowControl
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.messages import FAILED_EXIT_CODE
from rlboost_jax.providers.base import Exited, Granted, Refused

GRACE_SECONDS = 30.0  # beyond its notice, for a server that was terminated: more, and it hangs


class Provisioning:
    """The provider's servers: as many as there are machines and as are worth having."""

    def __init__(
        self, settings: Settings, owners: Owners, control: WindowControl, purchases: Purchases
    ) -> None:
        self._budget = settings.fleet
        self._spent = False  # the run has cost what it may
        self._grace = settings.fleet.notice_seconds + GRACE_SECONDS
        self._outbox = owners.outbox
        self._roster = owners.roster
        self._fleet = owners.fleet
        self._pools = owners.pools
        self._control = control
        self._purchases = purchases

    def granted(self, event: Granted) -> None:
        if (server := self._fleet.known(event.name, event.nonce)) is not None:
            self._fleet.granted(server)

    def ended(self, event: Refused | Exited, now: float) -> None:
        """Process the provider's final event of a server."""
        server = self._fleet.known(event.name, event.nonce)
        if server is None:
            return
        lines: dict[str, Any] = {}
        match event:
            case Exited(code=code, log=log):
                how, failed = "ended before it joined", code == FAILED_EXIT_CODE
                lines = {"log": list(log)} if log else {}
            case Refused():
                how, failed = "refused", False
            case _:
                assert_never(event)
        wanted = not server.doomed
        self._fleet.exited(server, now, failed=failed)  # its goodbye may have been lost
        if not server.joined:
            lines |= self._pools.field(server.pool)
            self._outbox.record("lost", event.name, reason=f"{how}: {event.reason}", **lines)
        elif wanted and lines:  # its loss was recorded as its stream ended
            self._outbox.record("exited", event.name, reason=event.reason, **lines)

    def priced(self, pool: str, price_per_hour: float) -> None:
        """Set the price of a pool's instances."""
        known = self._pools.get(pool)
        if known is None:
            return
        if (before := known.price) != price_per_hour:
            self._outbox.record("price", pool=pool, price_per_hour=price_per_hour, before=before)
        known.reprice(price_per_hour)
        for stream, name in self._pools.streams.items():
            if name == pool:
                self._roster.index.reprice(stream, price_per_hour)

    def removed(self, event: MachineRemoved) -> None:
        """Process a machine that the market takes back."""
        if not event.machine:
            self._fleet.owe(event)
        elif name := self._fleet.take(event.machine):
            self._terminate(name, event.notice)

    def carry_out_removal(self) -> bool:
        """Apply a waiting removal to a server at work, if any; return whether it was."""
        removal = self._fleet.removal
        if removal is None:
            return False
        at_work = [i for i in self._roster if i.state == "ready" and i.activity.in_flight]
        working = {server.name for i in at_work if (server := self._fleet.server_of(i.hello))}
        name = victim([name for name in self._fleet.standing if name in working], removal.draw)
        if name is None:
            return False
        self._fleet.take_under(name)
        self._terminate(name, removal.notice)
        return True

    def abandon_absent(self, now: float) -> None:
        """End servers that occupy a machine and do not reconnect."""
        for name in self._fleet.abandon(now):
            self._outbox.terminate(name)

    def keep_to_budget(self, now: float) -> None:
        """Release all servers, once, when the budget of the run is used up. No others follow."""
        most = self._budget.max_dollars
        if self._spent or not most:
            return
        dollars = self._roster.cost.total(now)
        self._spent = dollars >= most
        if not self._spent:
            return
        standing = self._fleet.standing
        self._outbox.record("budget", dollars=dollars, max_dollars=most, released=len(standing))
        for name in standing:
            self._terminate(name, notice=True)
            self._fleet.dismiss(self._fleet.servers[name])

    def start(self, resting: int | None, now: float, *, anew: bool) -> None:
        """Request the missing servers, but from pools that have failed just now.

        Args:
            resting: as many as there is work for until the next step; None: for all.
            anew: these take the place of others that were let go.
        """
        if self._fleet.full or self._spent:
            self._purchases.rest()
            return
        cap = self._fleet.cap(self._control.instance_cap, resting)
        pools = self._purchases.missing(cap, now)
        for server in self._fleet.start(pools, now, anew=anew):
            self._outbox.record("ordered", server.name, **self._pools.field(server.pool))
            self._outbox.request(server.name, server.nonce, server.pool)

    def _terminate(self, name: str, notice: bool) -> None:
        """End a server, after a notice in which it gets no more work if `notice`."""
        self._outbox.terminate(name, self._grace if notice else 0.0)
        for instance in self._roster if notice else ():
            if self._fleet.server_of(instance.hello) is self._fleet.servers[name]:
                self._roster.retire(instance)
                self._outbox.record("notice", instance.name, reason="the market", hint=False)
