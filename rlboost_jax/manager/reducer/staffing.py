"""What the market takes and lends, and the servers that are started, signalled and forgotten."""

import math

from rlboost_jax.manager.events import InstanceExited, MachineRemoved, ServerStarted
from rlboost_jax.manager.reducer.control import WindowControl
from rlboost_jax.manager.state.fleet import victim
from rlboost_jax.manager.state.owners import Owners


class Staffing:
    """The provider's servers: as many as there are machines and as are worth having."""

    def __init__(self, owners: Owners, control: WindowControl) -> None:
        self._outbox = owners.outbox
        self._roster = owners.roster
        self._fleet = owners.fleet
        self._control = control

    def started(self, event: ServerStarted) -> None:
        name, pid = event.instance, event.pid
        server = self._fleet.servers.get(name)
        if server is not None:  # else it has ended meanwhile
            joined = self._roster.speaks(name, lambda h: (h.instance, h.pid) == (name, pid))
            self._fleet.started(server, pid, joined=joined)

    def exited(self, event: InstanceExited, now: float) -> None:
        # Sick: its goodbye may have been lost.
        server = self._fleet.exited(event.instance, now, sick=event.sick)
        if server is not None and not server.joined:
            reason = f"ended before it joined: {event.detail}"
            self._outbox.record("lost", event.instance, reason=reason)

    def removed(self, event: MachineRemoved) -> None:
        """The market takes a machine back."""
        if not event.machine:
            self._fleet.owe(event)
        elif name := self._fleet.take(event.machine):
            self._signal(name, event.notice)

    def carry_out_removal(self) -> bool:
        """Let a waiting removal hit a server, if one is at work; whether it did."""
        removal = self._fleet.removal
        if removal is None:
            return False
        at_work = [i for i in self._roster if i.state == "ready" and i.activity.in_flight]
        working = {server.name for i in at_work if (server := self._fleet.server_of(i.hello))}
        name = victim([name for name in self._fleet.standing if name in working], removal.draw)
        if name is None:
            return False
        self._fleet.take_under(name)
        self._signal(name, removal.notice)
        return True

    def give_up_absent(self, now: float) -> None:
        """Kill servers that keep a machine and do nothing."""
        for name in self._fleet.give_up(now):
            self._outbox.signal(name, notice=False)

    def start(self, resting: int | None, now: float, *, anew: bool) -> None:
        """Start what is missing, unless the last one failed just now.

        Args:
            resting: as many as there is work for until the next step; None: for all.
            anew: these take the place of others that were let go.
        """
        missing = self._missing(resting)
        if not missing or now < self._fleet.retry_at:
            return
        for name in self._fleet.start(missing, now, anew=anew):
            self._outbox.record("ordered", name)
            self._outbox.start(name)

    def wake_at(self, resting: int | None) -> float:
        """When `start` has something to do though nothing has happened; inf: never."""
        return self._fleet.retry_at if self._missing(resting) else math.inf

    def _missing(self, resting: int | None) -> int:
        if self._fleet.full:  # nearly always, and asked three times at every event
            return 0
        return self._fleet.missing(self._control.instance_cap, resting)

    def _signal(self, name: str, notice: bool) -> None:
        """End a server. Under notice it gets no more work."""
        self._outbox.signal(name, notice=notice)
        for instance in self._roster if notice else ():
            if self._fleet.server_of(instance.hello) is self._fleet.servers[name]:
                self._roster.retire(instance)
                self._outbox.record("notice", instance.name, reason="the market", hint=False)
