"""The folder of a run: one configuration, one trainer at a time.

config.json       the resolved configuration and the run's id
metrics.jsonl     a row per step           events.jsonl   a row per fleet event
checkpoints/      to go on from            snapshots/     policy versions for servers
data.json         where prompts are read: of which rows, and which were left out
origin.json       the checkpoint that it began with, and a digest of its weights
reference/        where there is a KL term: the parameters that it is taken to
base/             where adapters are trained: what they are added to
manager.json      while a manager lives    logs/          of manager and the newest servers
join/             what a server's host needs to come in    trainer/   the same for the trainer
authority/        the run's certificate authority
servers/          one file per server that the manager started and that runs
lock, manager.lock   held by the trainer and the manager at work
report.html, summary.json, samples.jsonl
tensorboard/, wandb/, profile/   where they were asked for
"""

import fcntl
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import IO

from rlboost_jax.durable import PART, make_folder
from rlboost_jax.own_places import NO_LOCKS, open_private, own_folder
from rlboost_jax.settings.errors import Mistake
from rlboost_jax.settings.load import (
    differences,
    may_differ,
    read_run_config,
    read_run_id,
    write_run_config,
)
from rlboost_jax.settings.run import RunConfig

CONFIG_PART = "config.json" + PART


class WorkdirUnusable(Mistake, RuntimeError):
    """The folder belongs to another run or is in use."""


class Workdir:
    """Context manager that holds the folder for one trainer.

    Raises:
        WorkdirUnusable: on entry, before anything is written: another trainer is at work
            there, or it holds a run of another configuration.
        NotOurs: it is another user's, or open to all of them.
    """

    def __init__(self, path: str | Path, run: RunConfig):
        self.path, self._run = Path(path).absolute(), run
        self.run_id = ""
        self.config_changed = False  # of a kind that may change between two starts
        self._lock: IO[str] | None = None

    def __enter__(self) -> "Workdir":
        try:
            make_folder(self.path)
            own_folder(self.path, "--workdir")
            self._check_config()
            self._lock = open_private(self.path / "lock", "a+")
        except OSError as error:
            raise WorkdirUnusable(
                f"{self.path} cannot be used as a folder: {error.strerror}; choose another "
                "--workdir"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "?"
            self._lock.close()
            raise WorkdirUnusable(
                f"{self.path} is in use by process {owner}; stop it or choose another --workdir"
            ) from None
        except OSError as error:
            self._lock.close()
            raise WorkdirUnusable(
                f"{self.path / 'lock'} cannot be locked: {error.strerror}; {NO_LOCKS}"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        self.run_id = self.run_id or uuid.uuid4().hex
        write_run_config(self.path / "config.json", self._run, self.run_id)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._lock is not None
        self._lock.close()

    def _check_config(self) -> None:
        if not (self.path / "config.json").exists():
            names = {p.name for p in self.path.iterdir()} if self.path.is_dir() else set()
            others = names - {"lock", CONFIG_PART}  # left by one that was killed at its start
            if others:
                raise WorkdirUnusable(
                    f"{self.path} holds {len(others)} files and no config.json, so it is not a "
                    "run's; choose another --workdir"
                )
            return
        before = read_run_config(self.path)
        foreign = differences(before, self._run, ignore=may_differ(self._run))
        if foreign:
            shown = "; ".join(map(str, foreign[:3])) + ("; …" if len(foreign) > 3 else "")
            raise WorkdirUnusable(
                f"{self.path} holds a run of another configuration ({shown}); choose another "
                "--workdir or start with its configuration"
            )
        self.config_changed = bool(differences(before, self._run))
        self.run_id = read_run_id(self.path)


def is_held(path: Path) -> bool:
    """Whether a trainer works in a folder now."""
    try:
        with open(path / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
