"""Interface between `polled` and what starts servers elsewhere: start one, stop one, list them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

JobState = Literal["waiting", "running", "over"]


class LaunchFailed(RuntimeError):
    """A launcher refused, failed or did not answer in time. One line, for a person.

    Attributes:
        sure: nothing came of it; False: it may have been done all the same.
    """

    def __init__(self, reason: str, *, sure: bool = False) -> None:
        super().__init__(reason)
        self.sure = sure


@dataclass(frozen=True, kw_only=True)
class Job:
    """One machine as its launcher lists it: the tag that it was started with, and its state.

    Attributes:
        handle: the launcher's own name of it: a job number, a machine's id.
        run, name, nonce: the tag.
        code: of the server's program, once it is over; None: not known.
        reason: why it is over, waits or goes; "" where nobody says.
        refused: it is over before it began: there was nothing to pay for.
        remains: it is over, and is listed until it is stopped once more.
        withdrawn_in: seconds until it is taken back, by a stop, too; None: nobody does.
        log: of one that is over, its last lines; see `log_files.last_lines`.
    """

    handle: str
    run: str
    name: str
    nonce: str
    state: JobState
    code: int | None = None
    reason: str = ""
    refused: bool = False
    remains: bool = False
    withdrawn_in: float | None = None
    log: tuple[str, ...] = ()


class Launcher(Protocol):
    """Starts, stops and lists machines. Each method returns in time or raises `LaunchFailed`."""

    @property
    def pools(self) -> Sequence[str]:
        """Names of its pools besides `ANY_POOL`."""
        ...

    async def start(self, name: str, nonce: str, pool: str) -> None:
        """Start a server of this run, tagged; it is listed from some moment on."""
        ...

    async def stop(self, job: Job, grace_seconds: float) -> None:
        """Signal a server to be gone after the grace; 0: end it at once.

        It is called again with 0 once the grace is over. A server that is gone already is no error.
        """
        ...

    async def list(self) -> Sequence[Job]:
        """List all tagged jobs, of all runs; ended ones as long as the launcher knows them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A resource that a run keeps besides its machines: credentials, a template.

    Attributes:
        handle: the launcher's own name of it.
        what: it is, for a person.
    """

    handle: str
    run: str
    what: str


@runtime_checkable
class Keeper(Protocol):
    """A launcher that keeps resources, from its first start on until they are discarded."""

    async def kept(self) -> Sequence[Kept]:
        """List the resources of all runs. Raises LaunchFailed."""
        ...

    async def discard(self, kept: Kept) -> None:
        """Remove a resource, if it is there. Raises LaunchFailed."""
        ...


@runtime_checkable
class LogKeeper(Protocol):
    """A launcher that has the logs of its servers, also of ended ones."""

    async def log(self, name: str, nonce: str) -> Sequence[str]:
        """Last lines of a server's log, see `log_files.last_lines`. Raises LaunchFailed."""
        ...
