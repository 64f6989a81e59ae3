"""Files of a work directory for the manager's address, credentials and lock.

join/           all that a server's host needs to come in: copied there as it is
trainer/        what the trainer comes in with; stays where it is
page/           what opens the page in a browser
authority/      the run's certificate authority and the manager's certificate
manager.lock    locked while a manager works here
manager.json    where it listens and which process it is; one that dies leaves it behind

`rlboost_jax.trust.credentials` says what the first two hold. Whatever is secret is readable by its
owner only.
"""

import contextlib
import fcntl
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rlboost_jax.platform import durable, foreign_json, process_liveness
from rlboost_jax.platform.bounded_files import Unreadable, read_text
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.private_paths import NO_LOCKS, open_private
from rlboost_jax.trust.credentials import MOST_TOKEN_BYTES, TOKEN_FILE

ALREADY_MANAGED = 4  # exit code of a manager that finds another at work


class AlreadyManaged(RuntimeError):
    """Another manager works in the same directory."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Bearer tokens. A preemptible host holds the first only, so it cannot pass for the trainer."""

    server: str
    trainer: str


class ManagerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `manager.json`."""

    address: str  # HOST:PORT for other hosts
    local_address: str  # the same for processes of this host
    join: str  # folder with the credentials of rollout servers
    pid: int
    started: str  # that process's `start_time`: ids are used again
    run_id: str
    weights_port: int = 0  # of its file server

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def lives(self) -> bool:
        """Whether the recorded process still runs."""
        return process_liveness.runs(self.pid, self.started)


def join_folder(workdir: Path) -> Path:
    """Folder of the rollout servers' credentials."""
    return workdir / "join"


def trainer_folder(workdir: Path) -> Path:
    """Folder of the trainer's credentials."""
    return workdir / "trainer"


def authority_folder(workdir: Path) -> Path:
    return workdir / "authority"


def read_tokens(workdir: Path) -> Tokens:
    """The tokens of a work directory, readable by its owner only; made where absent or empty.

    Raises:
        ConfigError: both hold the same.
    """
    server, trainer = (token_of(folder(workdir)) for folder in (join_folder, trainer_folder))
    if server == trainer:
        raise ConfigError(
            f"{trainer_folder(workdir) / TOKEN_FILE} holds the servers' token; "
            "delete it, and a new one is made"
        )
    return Tokens(server=server, trainer=trainer)


def read_record(workdir: Path) -> ManagerRecord | None:
    """Record of the last manager here, which may have died; None if there is none."""
    try:
        found = msgspec.convert(foreign_json.read(workdir / "manager.json", dict), ManagerRecord)
        return found if found.port else None
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def recorded(workdir: Path, record: ManagerRecord) -> Iterator[None]:
    """Keep `manager.json` durably until the manager leaves.

    Servers on other hosts outlive a power cut of this one, and look for their manager at the
    recorded port. A manager that dies of an exception leaves the file behind, as one that is killed
    does: the next one learns from it at which port the servers look for it.
    """
    path = workdir / "manager.json"
    durable.write(path, msgspec.json.encode(record) + b"\n")
    yield
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def only_manager(workdir: Path) -> Iterator[None]:
    """Hold the lock of a work directory, which the system releases however the process ends.

    Raises:
        AlreadyManaged: another process holds it.
    """
    with open_private(workdir / "manager.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyManaged(
                f"a manager works in {workdir} already; {workdir / 'manager.json'} says where"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{workdir / 'manager.lock'} cannot be locked: {error.strerror}; {NO_LOCKS}"
            ) from None
        yield


def token_of(folder: Path) -> str:
    """Read the token of a folder of credentials, created if there is none.

    Only one manager comes here, and an empty, torn or lost file lets nobody in: another is made.
    """
    durable.make_folder(folder, mode=0o700)
    path = folder / TOKEN_FILE
    try:
        token = read_text(path, MOST_TOKEN_BYTES).strip()
        if token and token.isascii() and token.isprintable():
            return token
    except (FileNotFoundError, Unreadable):
        pass
    except OSError as error:
        if not durable.is_lost(error):
            raise
    token = secrets.token_urlsafe(32)
    durable.write(path, token.encode(), mode=0o600)
    return token
