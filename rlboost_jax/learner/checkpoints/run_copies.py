"""Copies of a run in an object store, so that it goes on after its disk is gone.

    copies/<step>.json   which files the copy of a checkpoint has: size and SHA-256 of each, sealed
    objects/<SHA-256>    their bytes, each once: what two copies share is stored and sent once
    run.json             the run that the copies are of

A copy has a checkpoint and what a run needs besides: settings, origin, rows, what adapters are
added to, answers of environments. It has none of the run's own secrets (`trainer/`, `authority/`,
`join/`), which a start makes anew, and no journal, whose tokens are sampled again.

Invariants:
- a copy is there once its list is, which is put last and read back;
- an object whose bytes are not those of its name is deleted, and no list names it;
- training waits for no copy. The newest durable checkpoint is copied next, others are left out;
- a checkpoint that is being copied is not deleted (`held`).
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlboost_jax.learner.checkpoints import base, best, origin
from rlboost_jax.platform import at_rest, durable, foreign_json
from rlboost_jax.platform.closing import ClosingThread
from rlboost_jax.platform.durable import Damaged
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.object_store import ObjectStore, StoreFailed
from rlboost_jax.settings.config_loading import read_run_id

CHECKPOINTS: Final = "checkpoints"
# Of a workdir, besides a checkpoint. What is in folders of checkpoints does not change, nor shrink.
FILES: Final = (
    *("config.json", origin.FILE, "data.json", "teachers.json", "fingerprints.json"),
    *("metrics.jsonl", "events.jsonl", "samples.jsonl", "warmup.jsonl", "summary.json"),
)
FOLDERS: Final = (best.FOLDER, base.FOLDER, "reference", "environments")
LIMIT: Final = 2**40  # bytes of an object
CLOSE_SECONDS: Final = 300.0  # without progress, after which the end of a run waits no longer
_BLOCK: Final = 2**23
_GONE: Final = (FileNotFoundError,)  # answers of environments that a newer checkpoint has
_SHA256: Final = re.compile("[0-9a-f]{64}")
_RUN: Final = "run.json"

Files = dict[str, tuple[int, str]]  # size and SHA-256 by the name of a file below the workdir


class CannotCopy(Mistake, RuntimeError):
    """The address holds another run, or cannot be written to."""


class CannotRestore(Mistake, RuntimeError):
    """There is no such copy, it is damaged, or the folder is in use."""


class RunCopies(ClosingThread):
    """Copies checkpoints of one run to a store as they become durable, in a thread of its own."""

    def __init__(
        self,
        workdir: Path,
        store: ObjectStore,
        *,
        keep: int,
        note: Callable[[str], None] = lambda line: None,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        """Claim the address for the run, and start.

        Args:
            keep: newest copies that are kept.
            note: shows a line to people.
            close_seconds: how long `close` waits for a copy that gets nothing done.

        Raises:
            CannotCopy
        """
        super().__init__("copies")
        self._workdir, self._store, self._keep, self._note = workdir, store, keep, note
        self._close_seconds = close_seconds
        self.copied = self._claim()
        self._wanted: int | None = None
        self._copying: int | None = None
        self._signs = 0  # of progress
        self._failed = False  # the last copy
        self._ended = False
        self._thread.start()

    @property
    def held(self) -> Collection[int]:
        """Steps whose checkpoints must stay for now."""
        with self._changed:
            return () if self._copying is None else (self._copying,)

    def copy(self, step: int) -> None:
        """Have a durable checkpoint copied, unless a newer one comes before its turn."""
        with self._changed:
            self._wanted = step
            self._changed.notify_all()

    def close(self) -> None:
        """Wait for the newest copy, if it gets on, and say what became of it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            signs = -1
            while not self._ended and signs != self._signs:
                signs = self._signs
                self._changed.wait_for(
                    lambda: self._ended or self._signs != signs,  # noqa: B023
                    self._close_seconds,
                )
            missing = self._copying if not self._ended else None
        if missing is not None:
            self._note(
                f"checkpoint {missing} is not in {self._store.url}: nothing was copied for "
                f"{self._close_seconds:.0f} s; `rlboost restore` has {self.copied or 'none'}"
            )

    def _claim(self) -> int | None:
        """Take the address for this run; returns the step of its newest copy."""
        own = read_run_id(self._workdir)
        said = json.dumps({"run_id": own}).encode()
        try:
            new, steps = self._store.claim(_RUN, said), steps_of(self._store)
            if not new and (other := _run_of(self._store)) != own:
                if steps:
                    raise CannotCopy(
                        f"checkpoint.copy_to is {self._store.url}, which has copies of another "
                        f"run ({other:.14}…); choose another place"
                    )
                self._store.put(_RUN, said)  # that one never made a copy
        except StoreFailed as error:
            raise CannotCopy(f"checkpoint.copy_to: {error}") from None
        return max(steps, default=None)

    def _run(self) -> None:
        while (step := self._next()) is not None:
            try:
                self._copy(step)
            except (StoreFailed, OSError, Damaged) as error:
                self._fail(step, error)
            except BaseException as error:  # a thread's error would be seen by nobody
                self._fail(step, error)
                break
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            self._copying = None
            self._changed.wait_for(lambda: self._wanted is not None or self._closed)
            self._copying, self._wanted = self._wanted, None
            return self._copying

    def _fail(self, step: int, error: BaseException) -> None:
        if not self._failed:
            self._note(
                f"checkpoint {step} was not copied to {self._store.url} ({error}); the next one "
                f"will be tried; the newest copy is of {self.copied or 'none'}"
            )
        self._failed = True

    def _copy(self, step: int) -> None:
        files: Files = {}
        for name in _names(self._workdir, step):
            with contextlib.suppress(*(() if name.startswith(CHECKPOINTS) else _GONE)):
                files[name] = self._put(self._workdir / name)
        said = {"run_id": read_run_id(self._workdir), "step": step, "files": files}
        self._store.put(_list_name(step), json.dumps(at_rest.sealed(said)).encode())
        if read_list(self._store, step)["files"].keys() != files.keys():
            raise StoreFailed(f"{self._store.url}/{_list_name(step)} is not what was put there")
        self.copied = step
        if self._failed:
            self._note(f"checkpoint {step} is in {self._store.url}: copies go on")
        self._failed = False
        self._delete_old(step)

    def _put(self, path: Path) -> tuple[int, str]:
        """Put a file as long as it is now; returns its size and digest."""
        size = path.stat().st_size
        digest = hashlib.sha256()
        for block in self._blocks(path, size):
            digest.update(block)
        name = f"objects/{digest.hexdigest()}"
        if self._store.size(name) != size:
            again = hashlib.sha256()
            self._store.put(name, _digesting(self._blocks(path, size), again))
            if again.digest() != digest.digest():
                self._store.delete([name])
                raise Damaged(f"{path} changed while it was copied")
        return size, digest.hexdigest()

    def _blocks(self, path: Path, size: int) -> Iterator[bytes]:
        """Read the first bytes of a file, which may grow meanwhile."""
        with open(path, "rb", buffering=0) as file:
            while size:
                block = file.read(min(_BLOCK, size))
                if not block:
                    raise Damaged(f"{path} became shorter while it was copied")
                size -= len(block)
                yield block
                with self._changed:
                    self._signs += 1
                    self._changed.notify_all()

    def _delete_old(self, newest: int) -> None:
        """Delete older copies, and then whatever object no copy names."""
        steps = steps_of(self._store)
        old = [step for step in steps if step <= newest][: -self._keep]
        self._store.delete(map(_list_name, old))
        named = {
            digest
            for step in set(steps) - set(old)
            for _, digest in read_list(self._store, step)["files"].values()
        }
        objects = self._store.names("objects")
        self._store.delete(o for o in objects if o.rpartition("/")[2] not in named)


class NoCopies:
    """Copies of a run that makes none."""

    held: Collection[int] = ()
    copied: int | None = None

    def copy(self, step: int) -> None:
        """Copy nothing."""


def restore(store: ObjectStore, workdir: Path, step: int | None = None) -> int:
    """Bring a copy of a run into a folder that has none; returns its step.

    Every file is checked as it arrives. `config.json`, which makes it a run, comes last.

    Args:
        step: of the copy; None: the newest.

    Raises:
        CannotRestore
    """
    if workdir.exists() and any(workdir.iterdir()):
        raise CannotRestore(f"{workdir} is not empty; choose another --workdir")
    part = workdir.with_name(workdir.name + durable.PART)
    try:
        steps = steps_of(store)
        if not steps or (step is not None and step not in steps):
            shown = ", ".join(map(str, steps)) or "none"
            raise CannotRestore(f"{store.url} has no such copy of a run; there are {shown}")
        step = steps[-1] if step is None else step
        files = read_list(store, step)["files"]
        shutil.rmtree(part, ignore_errors=True)
        for name, (size, sha256) in files.items():
            _get(store, part / name, size, sha256)
        durable.sync_tree(part)
        if workdir.exists():
            workdir.rmdir()
        durable.replace(part, workdir)
    except (StoreFailed, Damaged) as error:
        raise CannotRestore(str(error)) from None
    except OSError as error:
        raise CannotRestore(f"{workdir} cannot be written: {error.strerror}") from None
    return step


def steps_of(store: ObjectStore) -> list[int]:
    """Steps of the copies that a store has, in order. Raises StoreFailed."""
    names = (name.rpartition("/")[2].removesuffix(".json") for name in store.names("copies"))
    return sorted(int(name) for name in names if name.isdecimal())


def read_list(store: ObjectStore, step: int) -> Mapping[str, Any]:
    """Read which files a copy has. Raises StoreFailed, Damaged."""
    name = f"{store.url}/{_list_name(step)}"
    try:
        text = store.read(_list_name(step), foreign_json.MOST_BYTES)
        values = at_rest.unsealed(foreign_json.decode(text, name, dict), Path(name), _REMEDY)
    except foreign_json.Unreadable as error:
        raise Damaged(str(error)) from None
    files = values.get("files")
    if values.get("step") != step or not isinstance(files, dict) or not files:
        raise Damaged(f"{name} is not the list of that copy; {_REMEDY}")
    if not all(at_rest.is_digest(*each) and _belongs(each[0], *each[1]) for each in files.items()):
        raise Damaged(f"{name} names other files than those of a run; {_REMEDY}")
    return values


_REMEDY: Final = "choose another one with --step"


def _names(workdir: Path, step: int) -> Iterator[str]:
    """Files that the copy of a checkpoint has, below the workdir."""
    for name in FILES:
        if (workdir / name).is_file():
            yield name
    for folder in (f"{CHECKPOINTS}/{step}", *FOLDERS):
        for path in sorted((workdir / folder).rglob("*")):
            below = path.relative_to(workdir)
            if path.is_file() and not any(p.endswith(durable.PART) for p in below.parts):
                yield below.as_posix()


def _belongs(name: str, size: int, sha256: str) -> bool:
    known = name in FILES or name.split("/")[0] in (CHECKPOINTS, *FOLDERS)
    return known and 0 <= size <= LIMIT and _SHA256.fullmatch(sha256) is not None


def _digesting(blocks: Iterator[bytes], digest: Any) -> Iterator[bytes]:
    for block in blocks:
        digest.update(block)
        yield block


def _get(store: ObjectStore, path: Path, size: int, sha256: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for block in store.blocks(f"objects/{sha256}", size):
            digest.update(block)
            file.write(block)
        written = file.tell()
    if (written, digest.hexdigest()) != (size, sha256):
        os.unlink(path)
        raise Damaged(f"{store.url}/objects/{sha256} has other bytes than its name; {_REMEDY}")


def _list_name(step: int) -> str:
    return f"copies/{step}.json"


def _run_of(store: ObjectStore) -> str:
    """The id of the run that a store has copies of."""
    try:
        values = foreign_json.decode(store.read(_RUN, 2**16), f"{store.url}/{_RUN}", dict)
    except foreign_json.Unreadable as error:
        raise CannotCopy(f"checkpoint.copy_to: {error}; choose another place") from None
    return str(values.get("run_id"))
