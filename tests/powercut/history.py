"""A recorded run as a sequence of states of its disk, and what it had promised at each moment."""

import contextlib
import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from rlboost_jax.manager.journal_entries import Entry, Forgotten, RunOver, RunState, read_segment
from tests.powercut.disk import LOSSES, Disk, Loss, Tree
from tests.powercut.operations import Kind, Operation

WORKDIR = "run"  # below the root
# In one piece, whatever happens: what they hold is one of all that they ever held under that name.
WHOLE = (
    *("config.json", "origin.json", "data.json", "summary.json", "report.html", "manager.json"),
    *("join/*", "trainer/*", "authority/*", "best/best.json", "fingerprints.json"),
)
# Needed by what goes on from a checkpoint: there, as it was, from the first promise on.
NEEDED = ("config.json", "origin.json", "data.json", "join/*", "trainer/*", "authority/*")
TREES = ("base", "reference")  # likewise
# Nothing follows from these.
IDLE = (
    *("logs", "events.jsonl", "samples.jsonl", "snapshots", "servers", "summary.json"),
    *("report.html", "lock", "manager.lock", "*.part", "manager.json"),
)


@dataclass
class Promise:
    """What the run has said to be durable at some moment: nothing of it may be lost after that.

    Attributes:
        steps: with which it goes on at least; 0: it may begin anew.
        checkpoints: by number, as they were when they were said to last.
        needed: files and trees, likewise.
        rows: lines of metrics.jsonl of the steps before.
        names, dollars: given out and spent, as the journals say that have been removed.
    """

    steps: int = 0
    over: bool = False
    checkpoints: dict[int, Tree] = field(default_factory=dict)
    needed: dict[str, "bytes | str | Tree"] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    names: int = 0
    dollars: float = 0.0


@dataclass(frozen=True)
class Cut:
    """A disk after a power cut.

    Attributes:
        at: operations that had happened.
        ever: all that each whole file has held so far.
    """

    at: int
    loss: Loss
    workdir: Tree | None  # None: there is no such folder
    promise: Promise
    ever: Mapping[str, set[bytes]]


class History:
    """
    Args:
        root: of the recording, as the operations name it.
    """

    def __init__(self, operations: list[Operation], root: Path) -> None:
        self._operations, self._root = operations, str(root)
        self._prefix = f"{root}/{WORKDIR}/"

    def cuts(self, count: int, seed: int) -> Iterator[Cut]:
        """So many, in order of time: where, and what is lost, is drawn."""
        rng = random.Random(seed)
        moments = sorted(rng.randint(0, len(self._operations)) for _ in range(count))
        disk, promise, ever = Disk(self._root), Promise(), dict[str, set[bytes]]()
        states: dict[str, RunState] = {}  # by journal
        done = 0
        for moment in moments:
            for operation in self._operations[done:moment]:
                disk.apply(operation)
                self._notice(operation, disk, promise, ever, states)
            done = moment
            loss = rng.choice(LOSSES)
            tree = disk.after_a_cut(loss, rng).get(WORKDIR)
            found = tree if isinstance(tree, dict) else None
            yield Cut(moment, loss, found, _copy(promise), {k: set(v) for k, v in ever.items()})

    def end(self) -> Tree:
        """The workdir after all."""
        disk = Disk(self._root)
        for operation in self._operations:
            disk.apply(operation)
        return disk.now()

    def waited_for(self) -> list[Operation]:
        """Syncs that a step waits for, from the first batch to the last row: of versions, and by
        the main threads of trainer and manager and those that write journals and rows."""
        writes = [(n, o) for n, o in enumerate(self._operations) if o.kind is Kind.WRITE]
        begun = next(n for n, o in writes if self._inside(o, "journal/"))
        done = next(n for n, o in reversed(writes) if self._inside(o, "metrics.jsonl"))
        steps = self._operations[begun:done]
        waited = ("journal/", "metrics.jsonl", "samples.jsonl")
        busy = {o.thread for o in steps if o.kind is Kind.WRITE and self._inside(o, *waited)}
        syncs = [o for o in steps if o.kind in (Kind.SYNC, Kind.SYNC_ALL)]
        busy |= {o.pid for o in syncs}  # their main threads
        return [o for o in syncs if o.thread in busy or self._inside(o, "snapshots/")]

    def _inside(self, operation: Operation, *places: str) -> bool:
        return operation.path.startswith(tuple(self._prefix + place for place in places))

    def _notice(
        self,
        operation: Operation,
        disk: Disk,
        promise: Promise,
        ever: dict[str, set[bytes]],
        states: dict[str, RunState],
    ) -> None:
        if not operation.path.startswith(self._prefix):
            return
        name = operation.path.removeprefix(self._prefix)
        if operation.kind is Kind.RENAME:
            new = operation.other.removeprefix(self._prefix)
            if any(fnmatch(new, pattern) for pattern in WHOLE):
                content = _at(disk.now(), f"{WORKDIR}/{new}")
                assert isinstance(content, bytes)
                ever.setdefault(new, set()).add(content)
        elif name.startswith("journal/") and operation.kind is Kind.WRITE:
            for entry in read_segment(operation.data).records:
                if isinstance(entry, RunState):
                    states[name] = entry
                self._promise(entry, disk, promise)
        elif name.startswith("journal/") and operation.kind is Kind.UNLINK and not promise.over:
            gone = states.pop(name, None)
            if gone is not None:
                promise.names = max(promise.names, gone.numbers + gone.fleet_numbers)
                promise.dollars = max(promise.dollars, gone.dollars)

    def _promise(self, entry: Entry, disk: Disk, promise: Promise) -> None:
        if isinstance(entry, RunOver):
            promise.over = True
        if not isinstance(entry, Forgotten):
            return
        now = disk.now()[WORKDIR]
        assert isinstance(now, dict)
        promise.steps = entry.committed + 1
        saved = now["checkpoints"]
        assert isinstance(saved, dict)
        tree = saved[str(promise.steps)]
        assert isinstance(tree, dict)
        promise.checkpoints = {promise.steps: tree}
        files = dict(_files(now))
        promise.needed = {
            name: data
            for name, data in files.items()
            if any(fnmatch(name, pattern) for pattern in NEEDED) and not name.endswith(".part")
        }
        promise.needed |= {name: now[name] for name in TREES if name in now}
        rows = files["metrics.jsonl"].decode().splitlines(keepends=True)
        promise.rows = [row for row in rows if json.loads(row)["step"] < promise.steps]


def broken(cut: Cut) -> list[str]:
    """What is not as it was promised, without starting anything."""
    promise, tree = cut.promise, cut.workdir
    if tree is None:
        return ["the run is gone"] if promise.steps else []
    wrong: list[str] = []
    files = dict(_files(tree))
    for name, data in files.items():
        whole = any(fnmatch(name, pattern) for pattern in WHOLE) and not name.endswith(".part")
        if whole and data not in cut.ever.get(name, set()):
            wrong.append(f"{name} holds {len(data)} bytes that were never its own")
    for name, before in promise.needed.items():
        if name == "config.json" and name in files:
            continue  # another is as good, if it is whole
        if _at(tree, name) != before:
            wrong.append(f"{name} is not as it was")
    for number, before in promise.checkpoints.items():
        if _at(tree, f"checkpoints/{number}") != before:
            wrong.append(f"checkpoint {number}, said to last, is not as it was")
    wrong += _rows_before_checkpoints(tree, files.get("metrics.jsonl", b""))
    rows = files.get("metrics.jsonl", b"").decode(errors="replace").splitlines(keepends=True)
    if rows[: len(promise.rows)] != promise.rows:
        wrong.append(f"of {len(promise.rows)} rows some are lost")
    return wrong


def _rows_before_checkpoints(tree: Tree, lines: bytes) -> list[str]:
    """A start goes on from the newest checkpoint, said to last or not: no row before it can be
    made again."""
    saved = tree.get("checkpoints")
    names = saved if isinstance(saved, dict) else {}
    newest = max((int(name) for name in names if name.isdigit()), default=0)
    found = set()
    for line in lines.decode(errors="replace").split("\n"):
        with contextlib.suppress(ValueError):
            found.add(json.loads(line)["step"])
    missing = sorted(set(range(newest)) - found)
    return (
        [f"checkpoint {newest} is there, and rows {missing} before it are not"] if missing else []
    )


def digest(tree: Tree) -> str:
    """Digest of all that anything follows from; of a journal, only what can be read."""
    found = hashlib.sha256()
    for name, data in sorted(_files(tree)):
        parts = name.split("/")
        if any(fnmatch(part, pattern) for part in (parts[0], parts[-1]) for pattern in IDLE):
            continue
        if name.startswith("journal/"):
            data = data[: read_segment(data).good_bytes]
        found.update(f"{name} {len(data)}\n".encode() + data)
    return found.hexdigest()


def likeness(tree: Tree) -> str:
    """What a disk is like: which files are there, whole, empty or neither, and what of journals
    and rows. A start goes the same way for two that are alike."""
    parts = []
    for name, data in sorted(_files(tree)):
        first = name.split("/")[0]
        if name.startswith("journal/"):
            segment = read_segment(data)
            damage = segment.damage.partition(" at ")[0]
            kinds = sorted({type(entry).__name__ for entry in segment.records})
            parts.append(f"{name} {damage} {kinds}")
        elif first in (*TREES, "checkpoints", "best") or any(fnmatch(name, p) for p in NEEDED):
            parts.append(f"{name if first not in TREES else first} {_kind(data)}")
        elif name == "metrics.jsonl":
            parts.append(f"{name} {data.count(b'{')} {_kind(data)}")
    return "\n".join(dict.fromkeys(re.sub("[0-9a-f]{32}", "…", part) for part in parts))


def _kind(data: bytes) -> str:
    return "empty" if not data else "with zeros" if bytes(64) in data else "there"


def _files(tree: Tree, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for name, what in tree.items():
        if isinstance(what, dict):
            yield from _files(what, f"{prefix}{name}/")
        elif isinstance(what, bytes):
            yield prefix + name, what


def _at(tree: Tree, name: str) -> "bytes | str | Tree | None":
    here: bytes | str | Tree | None = tree
    for part in name.split("/"):
        here = here.get(part) if isinstance(here, dict) else None
    return here


def _copy(promise: Promise) -> Promise:
    return Promise(**vars(promise))
