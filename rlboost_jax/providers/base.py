"""The seam between the manager and whatever starts rollout servers: `Provider` and its events.

    request ─┬─ Refused                                   nothing exists, nothing will
             └─ Granted ── Started ── (Withdrawn) ── Exited
                └─ paid for from here ──────────────── to here

An instance is its name and its nonce, and nothing else: no process id, job number or address of
a provider's crosses this seam. The manager chooses both. Names are unique in a run. A nonce is
unique for good, and the server's `Hello` echoes it: that is how the manager knows that who dials
is who was asked for. It is no secret; the run's token is what lets a server in.

The manager decides how many instances there are, asks again after a refusal (with a pause that
doubles) and never waits for an answer. docs/how-to/providers.md says how to write a provider, and
tests/providers/test_contract.py what it has to pass.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

ANY_POOL: Final = "any"  # that every provider has: whatever it would take by itself
NONCE_VARIABLE: Final = "RLBOOST_NONCE"  # in the environment of a server: it echoes this


@dataclass(frozen=True, slots=True)
class Granted:
    """A machine for the instance exists or will. It is paid for from now on."""

    name: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Refused:
    """This request yields no machine. Another may succeed."""

    name: str
    nonce: str
    reason: str  # a line for a person: quota, capacity, an unknown pool, no answer


@dataclass(frozen=True, slots=True)
class Started:
    """Its server has started. When it can work it joins."""

    name: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The machine's owner takes it back; `Exited` follows. Not sent for terminated instances."""

    name: str
    nonce: str
    seconds: float  # from now; 0: at any moment
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The instance is over, however it ended. It is no longer paid for and its name is free."""

    name: str
    nonce: str
    reason: str
    code: int | None = None  # of the server's program; None: not known
    log: tuple[
        str, ...
    ] = ()  # the last lines that it printed, as `log_files.last_lines` gives them


ProviderEvent = Granted | Refused | Started | Withdrawn | Exited


@dataclass(frozen=True, slots=True)
class Listed:
    """An instance that is granted and has not exited."""

    name: str
    nonce: str


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Address of the run for servers, and the tags by which a provider knows its instances."""

    run_id: str
    workdir: Path  # of the run, on the manager's host; a provider's own records go below it
    address: str  # HOST:PORT of the manager, for other hosts
    local_address: str  # the same for processes of this host
    join: Path  # folder with the credentials of servers; they never go on a command line
    pool: str = ""  # whose instances these are; "": the run has no others
    pools: tuple[str, ...] = ()  # of the run

    def owns(self, name: str) -> bool:
        """Whether an instance of the run belongs to this pool: instances are named after theirs.

        One that is named after no pool belongs to the first.
        """
        of = name.rpartition("-")[0]
        return not self.pools or self.pool == (of if of in self.pools else self.pools[0])


class Provider(Protocol):
    """A service that starts and ends rollout servers.

    Calls come from one event loop, in the order of the manager's decisions. Several may be under
    way at once, and none is waited for by the manager's other work. Whatever can be expected to
    fail (a quota, a machine that does not come, an API that does not answer) is an event. An
    exception of any method is a mistake, and ends the manager.

    A provider that dies with its manager loses undelivered events. They are not repeated: the next
    manager relies on `list`.
    """

    async def request(self, name: str, nonce: str, pool: str) -> None:
        """Request an instance; `Granted` or `Refused` answers, sooner or later.

        Asked again with a nonce, it does nothing: however often a request is sent, at most one
        machine comes of it, and each event of it once.

        Args:
            pool: of machines to take it from: `ANY_POOL`, or one of the provider's own. One that
                it does not know it refuses.
        """
        ...

    async def terminate(self, name: str, grace_seconds: float) -> None:
        """End an instance, or a pending request; `Exited` or `Refused` follows.

        Its server gets a signal and may finish what it is at, for `grace_seconds` at most: then
        it is ended without a word, and with 0 it is so at once. Of several calls the earliest end
        counts. A name that means nobody (any more) is no mistake.
        """
        ...

    async def list(self) -> tuple[Listed, ...]:
        """All instances of this run that are granted and not over.

        Those that a provider of an earlier manager was granted are among them; from now on they
        are terminated and reported like all others. The manager calls it once, before it reads
        `events`. It does not return before it knows: what it leaves out nobody will ever end.

        The manager adopts what is listed, for the run pays for it: it counts for
        `fleet.max_instances` and in the report's dollars, wanted or not. What could not find this
        manager, as its address has changed, is terminated.
        """
        ...

    def events(self) -> AsyncIterator[ProviderEvent]:
        """Yield events, in order for each instance, until `close`; there is one reader.

        For each request exactly one of `Refused` and `Exited` comes, and comes last. `Started`
        and `Withdrawn` may be missing: not every provider hears of such things.
        """
        ...

    async def close(self) -> None:
        """End all instances, those being started included, as the run is over.

        Returns when none is left that is paid for. Nothing is granted from now on.
        """
        ...
