"""The folder of a run: one configuration, one trainer at a time.

config.json       the resolved configuration and the run's id; what was changed, where it began
metrics.jsonl     a row per step           events.jsonl   a row per fleet event
checkpoints/      to go on from            snapshots/     policy versions for servers
data.json         where prompts are read: of which rows, and which were left out
origin.json       the checkpoint that it began with, and a digest of its weights
fingerprints.json   on what kinds of host it was
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

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from rlboost_jax.platform.durable import PART, make_folder
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.private_paths import NO_LOCKS, open_private, own_folder
from rlboost_jax.platform.readable import check_text
from rlboost_jax.settings.changes import Change, differences, foreign, recorded, unlike_warmed
from rlboost_jax.settings.config_loading import (
    Origin,
    read_changes,
    read_code,
    read_origin,
    read_run_config,
    read_run_id,
    write_run_config,
)
from rlboost_jax.settings.outside import changed_since, digests_of
from rlboost_jax.settings.run_config import RunConfig

CONFIG_PART = "config.json" + PART
CHECKPOINTS: Final = ("checkpoints", "best")
_KILLED_AT_START: Final = frozenset({"lock", CONFIG_PART})  # what may be left then
_BY_DEVICES: Final = ("engine.", "learner.")  # `config.json` has what was chosen on them
# What a run that has committed no update may have made; all else in the folder is somebody's own.
_BEGINNING: Final = ("checkpoints", "best", "reference", "base", "origin.json")  # a fork keeps it
_HELD: Final = ("config.json", "lock", "logs", "join", "trainer", "authority", "page", "servers")
METRICS: Final = "metrics.jsonl"
_MADE: Final = (
    *(
        "snapshots",
        "journal",
        "environments",
        "manager.json",
        "data.json",
        "fingerprints.json",
        "tensorboard",
        "wandb",
        "mlflow",
        "profile",
    ),
    *(METRICS, "samples.jsonl", "events.jsonl", "alerts.jsonl", "summary.json", "report.html"),
)


class WorkdirUnusable(Mistake, RuntimeError):
    """The folder belongs to another run or is in use."""


class Workdir:
    """Context manager that holds the folder for one trainer.

    A start that fails by a user's mistake before the first checkpoint leaves nothing behind.

    Raises:
        WorkdirUnusable: on entry, before anything is written: another trainer is at work
            there, or it holds a run of another configuration.
        NotOurs: it is another user's, or open to all of them.
    """

    def __init__(self, path: str | Path, run: RunConfig, *, fork: Origin | None = None):
        """Describe the run that the folder is for.

        Args:
            fork: where the run is to begin, if it has not begun.
        """
        self.path, self._run = Path(path).absolute(), run
        self.run_id = ""
        self.fork = fork  # where it began; None: at its own step 0
        self.changes: tuple[Change, ...] = ()  # since
        self.config_changed = False  # of a kind that may change between two starts
        self.replaced = ""  # the id of a run that has made no update and is to begin anew
        self._missing: list[Path] = []  # folders that were not there, the innermost first
        self._new = False  # this start has made the run
        self.before: RunConfig | None = None  # what `config.json` has; None: there is none
        self._lock: IO[str] | None = None

    def __enter__(self) -> "Workdir":
        try:
            folders = (self.path, *self.path.parents)
            self._missing = [folder for folder in folders if not folder.exists()]
            make_folder(self.path)
            own_folder(self.path, "--workdir")
            self._check_config()
            self._lock = open_private(self.path / "lock", "a+")
        except OSError as error:
            raise _no_folder(self.path, error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read()
            self._lock.close()
            raise _in_use(self.path, owner) from None
        except OSError as error:
            self._lock.close()
            raise WorkdirUnusable(
                f"{self.path / 'lock'} cannot be locked: {error.strerror}; {NO_LOCKS}"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        if self.before is None:
            self.run_id, self._new = uuid.uuid4().hex, True
            self._write()
        return self

    def begin_anew(self) -> None:
        """Remove all files of the run that is `replaced`, whose manager has ended; begin anew."""
        # Checkpoints first: without them there is nothing to go on from.
        self._remove(*(() if self.fork else _BEGINNING), *_MADE)
        self.run_id, self.changes, self.replaced = uuid.uuid4().hex, (), ""
        self.before = None
        self._write()

    def go_on(self, step: int, *, again: Collection[str] = ()) -> None:
        """Continue at a step, from which changed settings take effect.

        Args:
            again: see `recorded`.

        Raises:
            WorkdirUnusable: the run is to be shorter than it is.
        """
        if step > self._run.num_steps:
            raise WorkdirUnusable(
                f"num_steps is {self._run.num_steps}, and {step} steps are done in {self.path}; "
                f"choose {step} or more, or begin a shorter run by "
                f"--fork={self.path}@STEP in another --workdir"
            )
        if self.before is not None:
            self.changes = recorded(self.changes, self.before, self._run, step=step, again=again)
            self._write()

    def _remove(self, *names: str) -> None:
        """Remove files and folders of a run; each disappears at once."""
        for path in (self.path / name for name in names):
            part = path.with_name(path.name + PART)
            shutil.rmtree(part, ignore_errors=True)
            if path.is_dir() and not path.is_symlink():
                path.rename(part)
                shutil.rmtree(part, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _write(self) -> None:
        write_run_config(
            self.path / "config.json",
            self._run,
            self.run_id,
            changes=self.changes,
            fork=self.fork,
            code=digests_of(self._run.outside_functions),
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._lock is not None
        if self._new and isinstance(error, Mistake) and not _entries(self.path / "checkpoints"):
            self._remove(*_BEGINNING, *_MADE, "manager.lock", *_HELD)
            with contextlib.suppress(OSError):  # not empty: then it is somebody's
                for folder in self._missing:
                    folder.rmdir()
        self._lock.close()

    def _check_config(self) -> None:
        if not (self.path / "config.json").exists():
            _check_empty(self.path)
            return
        before, origin = read_run_config(self.path), read_origin(self.path)
        self.before, self.fork = before, origin
        self.changes, self.run_id = read_changes(self.path), read_run_id(self.path)
        self.config_changed = bool(differences(before, self._run))
        wrong = [*map(str, foreign(before, self._run)), *_other_code(self.path, self._run)]
        reference = self.path / "reference"
        if self._run.algorithm.has_reference and not reference.exists() and not wrong:
            wrong = [str(each) for each in differences(before, self._run) if "kl_" in each.name]
        anew = wrong or (origin is None and unlike_warmed(before, self._run))
        if anew and not _has_updates(self.path, after=origin.step if origin else 0):
            self.replaced = self.run_id
        elif wrong:
            raise _another(self.path, wrong)


def check_usable(path: str | Path, run: RunConfig) -> None:
    """Raise early for a folder that `Workdir` would refuse, as far as files alone show.

    It takes a moment and imports nothing heavy. Kernels, which are chosen on the devices, are not
    compared, nothing is held, and nothing is written: `Workdir` has the last word.

    Raises:
        WorkdirUnusable: as `Workdir`'s.
    """
    path = Path(path).absolute()
    check_text(path, "--workdir", error=WorkdirUnusable)
    try:
        if not path.exists():
            return
        if not (path / "config.json").exists():
            _check_empty(path)
            return
        before, origin = read_run_config(path), read_origin(path)
        wrong = [str(d) for d in foreign(before, run) if not d.name.startswith(_BY_DEVICES)]
        wrong += _other_code(path, run)
        if wrong and _has_updates(path, after=origin.step if origin else 0):
            raise _another(path, wrong)
        if is_held(path):
            raise _in_use(path, (path / "lock").read_text())
    except OSError as error:
        raise _no_folder(path, error) from None


def _check_empty(path: Path) -> None:
    """Raise WorkdirUnusable for a folder that has files but no `config.json`."""
    others = {each.name for each in path.iterdir()} - _KILLED_AT_START
    if others:
        raise WorkdirUnusable(
            f"{path} holds {len(others)} files and no config.json, so it is not a "
            "run's; choose another --workdir"
        )


def check_code(path: Path, run: RunConfig) -> None:
    """Raise WorkdirUnusable if this process has other functions than the run began with."""
    if wrong := _other_code(path, run):
        raise _another(path, wrong)


def _other_code(path: Path, run: RunConfig) -> list[str]:
    """Functions of other packages that are not those with which the run began."""
    return list(changed_since(read_code(path), run.algorithm.outside_functions))


def _another(path: Path, wrong: list[str]) -> WorkdirUnusable:
    shown = "; ".join(wrong[:3]) + ("; …" if len(wrong) > 3 else "")
    return WorkdirUnusable(
        f"{path} holds a run of another configuration ({shown}); choose another "
        "--workdir or start with its configuration; docs/how-to/changing.md has what may "
        "change, and how to fork a run"
    )


def _in_use(path: Path, owner: str) -> WorkdirUnusable:
    return WorkdirUnusable(
        f"{path} is in use by process {owner.strip() or '?'}; stop it or choose another --workdir"
    )


def _no_folder(path: Path, error: OSError) -> WorkdirUnusable:
    return WorkdirUnusable(
        f"{path} cannot be used as a folder: {error.strerror}; choose another --workdir"
    )


def _has_updates(path: Path, *, after: int) -> bool:
    """Whether an update was made in a folder, by a row or a checkpoint of it, even a broken one.

    Args:
        after: the step that the run began with.
    """
    with contextlib.suppress(OSError):
        if (path / METRICS).stat().st_size:
            return True
    names = [each.name for name in CHECKPOINTS for each in _entries(path / name)]
    steps = (name.partition(".broken")[0] for name in names)
    return any(step.isdigit() and int(step) > after for step in steps)


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(folder.iterdir())
    return []


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
