"""Which machines the market lends, how many servers run on them, and whom a removal hits.

Servers that were started by hand are welcome on top: they are not counted here and are
nobody's victim.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from rlboost_jax.backoff import backoff_seconds
from rlboost_jax.manager.events import MachineRemoved
from rlboost_jax.messages import Hello

FIRST_RETRY_SECONDS = 0.5  # after a server ended that gave no token; doubles each time
LAST_RETRY_SECONDS = 30.0


class Tally:
    """Counts of a fleet's servers, which follow every change of one."""

    def __init__(self) -> None:
        self.standing = 0  # not doomed
        self.starting = 0  # of those, not joined
        self.homeless = 0  # of those, without a machine
        self.absent: dict[str, Server] = {}  # that have lost their stream

    def count(self, server: "Server", one: int) -> None:
        if not server.doomed:
            self.standing += one
            self.starting += one * (not server.joined)
            self.homeless += one * (not server.machine)
        if one < 0:
            self.absent.pop(server.name, None)
        elif server.absent_since < math.inf:
            self.absent[server.name] = server


@dataclass(slots=True)
class Server:
    """A process of the provider."""

    name: str
    machine: str  # "" if it was found and no machine has been lent for it yet
    pid: int | None = None  # known once the provider has started it
    joined: bool = False
    proved: bool = False  # has given tokens
    doomed: bool = False  # signalled
    absent_since: float = math.inf  # its stream has ended and there is no other yet
    started_at: float = math.inf  # by the provider; inf: it gives tokens, or was found
    sick: bool = False  # gave up by itself: whatever it proved, its machine is to rest
    tally: Tally | None = None  # of the fleet that it belongs to

    def __setattr__(self, name: str, value: object) -> None:
        tally: Tally | None = getattr(self, "tally", None)
        if tally is not None:
            tally.count(self, -1)
        object.__setattr__(self, name, value)
        if (tally := getattr(self, "tally", None)) is not None:
            tally.count(self, 1)


def wanted(*, machines: int, max_instances: int, cap: int | None) -> int:
    """Servers that should run. `cap`: what is worth having, None if all are."""
    return max(0, min(machines, max_instances, machines if cap is None else cap))


def victim(working: Sequence[str], draw: float) -> str | None:
    """Whom a nameless removal hits, None if nobody is at work.

    Args:
        working: servers with tokens in the making.
        draw: in [0, 1), chooses among them.
    """
    return working[min(int(draw * len(working)), len(working) - 1)] if working else None


ABSENT_SECONDS = 30.0  # a server that lost its stream so long ago will not dial again: it hangs


class Fleet:
    """Machines on loan and the provider's servers on them, from their start to their exit.

    A removal that names no machine hits some server at work. With none at work it waits for
    one; others that come meanwhile are the same removal.
    """

    def __init__(self, max_instances: int, *, capped: bool) -> None:
        self._max_instances = max_instances
        self._capped = capped
        self.machines: dict[str, str] = {}  # name → server on it, "" where free
        self._free: dict[str, None] = {}  # those, in any order
        self._tally = Tally()
        self.servers: dict[str, Server] = {}
        self.retry_at = -math.inf
        self.removal: MachineRemoved | None = None  # nameless: waits for a server at work
        self._returned_early = False  # the machine that `removal` will take
        self._taken: list[str] = []  # machines taken namelessly and not returned yet
        self._failures = 0
        self.numbers = 0  # in names given out

    @property
    def starting(self) -> int:
        """Servers started that have not joined yet."""
        return self._tally.starting

    @property
    def standing(self) -> list[str]:
        return [server.name for server in self.servers.values() if not server.doomed]

    @property
    def absent_at(self) -> float:
        """When the next server that does not come back is given up; inf: never."""
        standing = (s.absent_since for s in self._tally.absent.values() if not s.doomed)
        return min(standing, default=math.inf) + ABSENT_SECONDS

    def give_up(self, now: float) -> list[str]:
        """Servers that keep a machine and do nothing, doomed now."""
        if not self._tally.absent:
            return []
        late = [s for s in self.servers.values() if now >= s.absent_since + ABSENT_SECONDS]
        for server in late:
            server.doomed, server.absent_since = True, math.inf
        return [server.name for server in late]

    def lend(self, machine: str) -> None:
        """One machine more; "" returns the one that was taken first without a name."""
        if not machine and self._taken:
            machine = self._taken.pop(0)
        elif not machine and self.removal is not None:
            self._returned_early = True
        if machine and not self.machines.setdefault(machine, ""):
            self._free[machine] = None
            if self._tally.homeless:
                servers = self.servers.values()
                server = next(s for s in servers if not s.machine and not s.doomed)
                self.machines[machine], server.machine = server.name, machine
                del self._free[machine]

    def is_(self, server: Server) -> Callable[[Hello], bool]:
        """Whether that server says this."""
        return lambda hello: self.server_of(hello) is server

    def server_of(self, hello: Hello) -> Server | None:
        """Who says this; None if it was started by hand, whatever name it was given."""
        server = self.servers.get(hello.instance)
        return server if server is not None and server.pid == hello.pid else None

    def found(self, name: str, pid: int) -> None:
        """A server that an earlier manager started: it takes up the next machine lent.

        Where the market lends fewer than there were, it goes on all the same.
        """
        self._add(Server(name, "", pid, proved=True))
        number = name.rpartition("-")[2]
        if number.isdecimal():
            self.numbers = max(self.numbers, int(number))

    def take(self, machine: str) -> str:
        """That machine goes; returns the server on it, doomed now, or ""."""
        if machine in self._taken:
            self._taken.remove(machine)
        name = self.machines.pop(machine, "")
        self._free.pop(machine, None)
        if name:
            self.servers[name].doomed = True
        return name

    def take_under(self, name: str) -> None:
        """The machine under that server goes, until the market returns it namelessly."""
        server = self.servers[name]
        if server.machine:
            self.take(server.machine)
            self._taken.append(server.machine)
        server.doomed = True
        self.removal = None
        if self._returned_early:
            self._returned_early = False
            self.lend("")

    def missing(self, instance_cap: int) -> int:
        """Servers to start, the pause after a failed start not considered.

        Those above the cap go on: it limits what is started, not what runs.
        """
        cap = instance_cap if self._capped else None
        machines = len(self.machines)
        target = wanted(machines=machines, max_instances=self._max_instances, cap=cap)
        return max(0, min(target - self._tally.standing, len(self._free)))

    def start(self, count: int) -> list[str]:
        """Names for `count` new servers, on free machines in the order of their loan."""
        free = self._free
        first = islice((machine for machine in self.machines if machine in free), count)
        started = []
        for machine in list(free) if count == len(free) == 1 else list(first):
            self.numbers += 1
            name = f"local-{self.numbers}"
            self.machines[machine] = name
            del self._free[machine]
            self._add(Server(name, machine))
            started.append(name)
        return started

    def exited(self, name: str, now: float) -> Server | None:
        """Forget a server. One that ended by itself, sick or without a token, delays the next."""
        server = self.servers.pop(name, None)
        if server is None:
            return None
        self._tally.count(server, -1)
        object.__setattr__(server, "tally", None)
        if self.machines.get(server.machine) == name:
            self.machines[server.machine] = ""
            self._free[server.machine] = None
        if server.proved and not server.sick:
            self._failures = 0
        elif not server.doomed:
            self._failures += 1
            self.retry_at = now + backoff_seconds(
                self._failures - 1, first=FIRST_RETRY_SECONDS, longest=LAST_RETRY_SECONDS
            )
        return server

    def _add(self, server: Server) -> None:
        if (before := self.servers.get(server.name)) is not None:
            before.tally = None
        self.servers[server.name] = server
        server.tally = self._tally
