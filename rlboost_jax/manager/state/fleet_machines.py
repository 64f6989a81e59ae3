"""Machines that the market lends, the servers on them, and the victims of removals.

Servers that were started by hand are welcome on top: they are not counted here and are
nobody's victim.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from rlboost_jax.manager.events import MachineRemoved
from rlboost_jax.manager.journal_entries import RunState
from rlboost_jax.manager.policies.machines import wanted
from rlboost_jax.manager.state.free_machines import FreeMachines
from rlboost_jax.manager.state.instance_pools import Pools
from rlboost_jax.manager.state.pool_record import PoolTerms
from rlboost_jax.manager.state.requested_server import Server
from rlboost_jax.messages import Hello

ABSENT_SECONDS = 30.0  # a server that lost its stream so long ago will not dial again: it hangs


class Fleet:
    """Machines on loan and the provider's servers on them, from their start to their exit.

    What is asked at every event is counted, so a server's `joined`, `doomed` and `machine` are
    changed by the methods here only.

    A removal that names no machine hits some server at work. With none at work it waits for
    one; others that come meanwhile are the same removal.

    Args:
        capped: it has no more servers than are worth having.
        life: an id unique to this manager process, so that no nonce is ever repeated.
    """

    def __init__(self, max_instances: int, pools: Pools, *, capped: bool, life: str) -> None:
        self.pools = pools
        self._max_instances = max_instances
        self._capped, self._life = capped, life
        self.machines: dict[str, str] = {}  # name → server on it, "" where free
        self._free = FreeMachines(self.pools.of_machine)
        self.servers: dict[str, Server] = {}
        self._num_standing = 0  # not doomed
        self._starting: set[str] = set()  # names of servers that are granted and not joined
        self._homeless: dict[str, None] = {}  # names without a machine, as they were found
        self._absent: dict[str, float] = {}  # joined ones without a stream: since when
        self.removal: MachineRemoved | None = None  # nameless: waits for a server at work
        self._returned_early = False  # the machine that `removal` will take
        self._taken: list[str] = []  # machines taken namelessly and not returned yet
        self.numbers = 0  # in names given out

    @property
    def full(self) -> bool:
        """Whether no machine is free, so that nothing can be started."""
        return not self._free

    @property
    def starting(self) -> tuple[str, ...]:
        """Names of servers that are paid for and have not joined yet."""
        return tuple(sorted(self._starting))

    @property
    def standing(self) -> list[str]:
        return [server.name for server in self.servers.values() if not server.doomed]

    @property
    def absent_at(self) -> float:
        """When the next server that does not reconnect is abandoned; inf: never."""
        if not self._absent:
            return math.inf
        servers = self.servers
        waited_for = (
            since
            for name, since in self._absent.items()
            if servers[name].dismissed or not servers[name].doomed
        )
        return min(waited_for, default=math.inf) + ABSENT_SECONDS

    def abandon(self, now: float) -> list[str]:
        """Doom and return the servers that have not reconnected for `ABSENT_SECONDS`."""
        if not self._absent:
            return []
        late = [name for name, since in self._absent.items() if now >= since + ABSENT_SECONDS]
        for name in late:
            self._doom(self.servers[name])
            del self._absent[name]
        return late

    def mark(self) -> tuple[object, ...]:
        """A value that changes whenever `snapshot` does."""
        return (self.numbers,)

    def snapshot(self) -> dict[str, Any]:
        """Fields of `RunState` that are kept here."""
        return {"fleet_numbers": self.numbers}

    def restore(self, entry: RunState) -> None:
        """Restore from the journal, before any server has been found."""
        self.numbers = entry.fleet_numbers

    def owe(self, removal: MachineRemoved) -> None:
        """Note a removal without a name: it takes some server's machine once one is at work."""
        self.removal = self.removal or removal

    def prove(self, server: Server) -> None:
        """Note that the server has yielded tokens."""
        server.proved = True

    def fail(self, server: Server) -> None:
        """Note that the server failed: even if it had yielded tokens, its machine is to rest."""
        server.failed = True

    def start_seconds(self, server: Server, now: float) -> float:
        """Duration of a server's start, returned once; inf: it was found, or asked before."""
        seconds, server.started_at = now - server.started_at, math.inf
        return seconds if seconds > -math.inf else math.inf

    def was_there(self, name: str) -> None:
        """Note that a server was started before the manager, so its start is not measured."""
        self.servers[name].started_at = math.inf

    def dismiss(self, server: Server) -> None:
        """Doom a server for want of work; its machine stays on loan."""
        server.dismissed = True
        self._doom(server)

    def known(self, name: str, nonce: str) -> Server | None:
        """Server that the provider refers to; None if it is over or was never requested."""
        server = self.servers.get(name)
        return server if server is not None and server.nonce == nonce else None

    def granted(self, server: Server) -> None:
        """Note that the server is paid for from now on."""
        if not server.granted:
            self.pools[server.pool].grant()
        server.granted = True
        if not (server.joined or server.doomed):
            self._starting.add(server.name)

    def withdrawn(self, server: Server, goes_at: float, reason: str) -> None:
        """Note when the owner of the server's machine takes it back."""
        server.withdrawal = goes_at, reason

    def came(self, server: Server, now: float = math.inf) -> None:
        """Note that the server's stream is open."""
        if not (server.joined or server.doomed):
            self.pools[server.pool].come()
        server.joined = True
        server.joined_at = min(server.joined_at, now)
        self._starting.discard(server.name)
        self._absent.pop(server.name, None)

    def lost_sight_of(self, server: Server, now: float) -> None:
        """Note that a server's stream has ended. The stream may have come before the provider had
        listed the server, as with one of an earlier manager.
        """
        self.came(server, now)
        self._absent[server.name] = now

    def lend(self, machine: str) -> None:
        """Add a machine; "" returns the first that was taken without a name."""
        if not machine and self._taken:
            machine = self._taken.pop(0)
        elif not machine and self.removal is not None:
            self._returned_early = True
        if machine and not self.machines.setdefault(machine, ""):
            self._free.add(machine)
            if self._homeless:
                name = next(iter(self._homeless))
                del self._homeless[name]
                self._free.remove(machine)
                self.machines[machine], self.servers[name].machine = name, machine

    def said_by(self, server: Server) -> Callable[[Hello], bool]:
        """Predicate: whether a `Hello` is of that server."""
        return lambda hello: self.server_of(hello) is server

    def server_of(self, hello: Hello) -> Server | None:
        """Server that sent a `Hello`; None if it was started by hand, under whatever name."""
        return self.known(hello.instance, hello.nonce)

    def ended(self, hello: Hello) -> bool:
        """Whether this manager had requested that server, under whatever name, and it is over."""
        living = {server.nonce for server in self.servers.values()}
        return hello.nonce.startswith(f"{self._life}-") and hello.nonce not in living

    def found(self, name: str, nonce: str) -> None:
        """Add a server that an earlier manager requested, even if no machine is lent for it yet."""
        pool = self.pools.of_name(name)
        server = Server(name, nonce, "", pool, granted=True, proved=True, joined_at=-math.inf)
        self._add(server)
        self.pools[server.pool].find()
        self.granted(server)
        number = name.rpartition("-")[2]
        if number.isdecimal():
            self.numbers = max(self.numbers, int(number))

    def take(self, machine: str) -> str:
        """Remove a machine; returns the server on it, doomed now, or ""."""
        if machine in self._taken:
            self._taken.remove(machine)
        name = self.machines.pop(machine, "")
        self._free.remove(machine)
        if name:
            self.servers[name].taken = True
            self._doom(self.servers[name])
        return name

    def take_under(self, name: str) -> None:
        """Take the machine under a server, until the market returns it without a name."""
        server = self.servers[name]
        if server.machine:
            self.take(server.machine)
            self._taken.append(server.machine)
        server.taken = True
        self._doom(server)
        self.removal = None
        if self._returned_early:
            self._returned_early = False
            self.lend("")

    def cap(self, instance_cap: int, resting: int | None = None) -> int | None:
        """Servers worth having; None: all that there can be.

        Args:
            resting: as many as there is work for until the next step; None: for all.
        """
        if not self._capped:
            return resting
        return instance_cap if resting is None else min(instance_cap, resting)

    def missing(self, cap: int | None) -> int:
        """Number of servers to start, ignoring pauses after failed starts.

        Those above the cap go on: it limits what is started, not what runs.
        """
        machines = len(self.machines)
        target = wanted(machines=machines, max_instances=self._max_instances, cap=cap)
        return max(0, target - self._num_standing)

    def start(
        self, pools: Iterable[str], now: float = math.inf, *, anew: bool = False
    ) -> list[Server]:
        """Create servers to request from these pools, as far as there are machines for them.

        Machines are taken in the order of their loan.

        Args:
            anew: they take the place of others.
        """
        started = []
        for pool in pools:
            lent = self._free if len(self._free) == 1 else self.machines
            machine = next((m for m in lent if self._free.serves(m, pool)), None)
            if machine is not None:
                started.append(self._start(machine, self.pools[pool].terms, now, anew))
        return started

    def free_in(self, pool: str) -> int:
        """Number of further servers that may be requested from a pool."""
        known = self.pools[pool]
        return max(0, min(self._free.of(pool), known.terms.most - known.present))

    @property
    def starting_hourly(self) -> float:
        """Dollars per hour for servers that are paid for and have not joined."""
        counts = Counter(self.servers[name].pool for name in self._starting)
        return sum(self.pools[name].price * count for name, count in counts.items())

    def _start(self, machine: str, terms: PoolTerms, now: float, anew: bool) -> Server:
        self.numbers += 1
        name, nonce = f"{terms.prefix}-{self.numbers}", f"{self._life}-{self.numbers}"
        self.machines[machine] = name
        self._free.remove(machine)
        server = Server(name, nonce, machine, terms.name, started_at=now, anew=anew)
        self._add(server)
        self.pools[terms.name].ask()
        return server

    def exited(self, server: Server, now: float, *, failed: bool = False) -> None:
        """Forget a server. One that failed, ended without a token, was refused, or was taken away
        as soon as it came may delay the next of its pool.

        Args:
            failed: it said so as it ended; it may have said so before.
        """
        name, doomed = server.name, server.doomed
        del self.servers[name]
        self._forget(server)
        if self.machines.get(server.machine) == name:
            self.machines[server.machine] = ""
            self._free.add(server.machine)
        pool = self.pools[server.pool]
        pool.end(paid=server.granted)
        lived = now - server.joined_at if server.joined_at < math.inf else 0.0
        gone = server.taken or not doomed
        if gone and pool.quick(lived):
            pool.fail(now)
        elif server.proved and not (server.failed or failed):
            pool.serve()
        elif not doomed:
            pool.fail(now)

    def _add(self, server: Server) -> None:
        if (before := self.servers.get(server.name)) is not None:
            self._forget(before)
            self.pools[before.pool].end(paid=before.granted)
        self.servers[server.name] = server
        self._num_standing += 1
        self.pools[server.pool].stand()
        if not server.machine:
            self._homeless[server.name] = None

    def _doom(self, server: Server) -> None:
        if not server.doomed:
            server.doomed = True
            self._num_standing -= 1
            self.pools[server.pool].fall(joined=server.joined)
            self._starting.discard(server.name)
            self._homeless.pop(server.name, None)

    def _forget(self, server: Server) -> None:
        self._doom(server)
        self._absent.pop(server.name, None)
