"""The model of a disk, the recorder, and what small files and journals are after any power cut."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlboost_jax.manager.journal_entries import BatchOpened, RunState
from rlboost_jax.manager.service.journal_files import JournalFiles
from tests.manager.fakes import RUN, begin_batch
from tests.patience import PATIENCE_SECONDS
from tests.powercut.disk import LOSSES, Disk, Tree, write_tree
from tests.powercut.history import Cut, History, Promise, broken
from tests.powercut.operations import Kind, Operation, read_log
from tests.powercut.recording import Recording, prepare, recorder

ROOT = Path(__file__).parents[2]
DRAWS = 3  # of what chance decides, at each moment

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recording]:
    """Has a process of its own carry out Python statements, with `root` as a folder."""

    library = recorder(tmp_path_factory.mktemp("recorder"))

    def record(statements: str) -> Recording:
        recording = prepare(tmp_path_factory.mktemp("cut") / "recording", library)
        program = f"from pathlib import Path\nroot = Path({str(recording.root)!r})\n{statements}"
        subprocess.run(
            [sys.executable, "-c", program],
            env={**recording.environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
            check=True,
            timeout=PATIENCE_SECONDS,
        )
        return recording

    return record


def disk_of(recording: Recording) -> Disk:
    disk = Disk(str(recording.root))
    for operation in read_log(recording.log):
        disk.apply(operation)
    return disk


def states(recording: Recording) -> Iterator[tuple[int, Tree]]:
    """(operations that had happened, what a disk may then hold), at every boundary."""
    rng, disk = random.Random(0), Disk(str(recording.root))
    for done, operation in enumerate([*read_log(recording.log), None]):
        for loss in LOSSES:
            for _ in range(DRAWS if loss in ("tails", "any") else 1):
                yield done, disk.after_a_cut(loss, rng)
        if operation is not None:
            disk.apply(operation)


def files(tree: Tree, prefix: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, what in tree.items():
        if isinstance(what, dict):
            found |= files(what, f"{prefix}{name}/")
        elif isinstance(what, bytes):
            found[prefix + name] = what
    return found


def test_what_was_not_synced_may_be_lost_and_what_was_may_not() -> None:
    disk = Disk("/d")

    def do(kind: Kind, path: str, other: str = "", data: bytes = b"") -> None:
        disk.apply(Operation(kind, 1, 1, path, other, 0, data))

    rng = random.Random(0)
    do(Kind.CREATE, "/d/a.part")
    do(Kind.WRITE, "/d/a.part", data=b"new")
    do(Kind.RENAME, "/d/a.part", "/d/a")
    assert disk.now() == {"a": b"new"}
    assert disk.after_a_cut("all", rng) == {}
    assert disk.after_a_cut("data", rng) == {"a": b""}  # what a rename without a sync is known for
    assert disk.after_a_cut("zeros", rng) == {"a": bytes(3)}
    assert disk.after_a_cut("names", rng) == {}
    do(Kind.SYNC, "/d/a")
    assert disk.after_a_cut("data", rng) == {"a": b"new"}
    assert disk.after_a_cut("names", rng) == {}
    do(Kind.SYNC, "/d")
    do(Kind.UNLINK, "/d/a")
    assert disk.now() == disk.after_a_cut("data", rng) == {}
    assert disk.after_a_cut("all", rng) == {"a": b"new"}  # it is back


def test_all_that_is_done_to_files_is_recorded(recorded: Callable[[str], Recording]) -> None:
    recording = recorded("""
import os, shutil, subprocess, sys, threading
(root / "a" / "b").mkdir(parents=True)
(root / "a" / "b" / "one").write_text("first")
with open(root / "a" / "log", "ab", buffering=0) as log:
    log.write(b"mine ")
    subprocess.run([sys.executable, "-c", "import os; os.write(1, b'its ')"], stdout=log)
    log.write(b"mine again")
os.truncate(root / "a" / "log", 12)
os.link(root / "a" / "b" / "one", root / "two")
shutil.copy(root / "two", root / "three")
os.symlink("three", root / "link")
with open(root / "three", "r+b") as file:
    file.seek(2); file.write(b"X"); file.flush()
    os.pwrite(file.fileno(), b"YZ", 40); os.ftruncate(file.fileno(), 41)
folder = os.open(root, os.O_RDONLY)
os.rename("a", "c", src_dir_fd=folder, dst_dir_fd=folder)
os.replace(root / "c" / "b", root / "b")
def write(number):
    for turn in range(50):
        (root / f"{number}.{turn % 5}").write_bytes(bytes([number]) * turn)
        os.replace(root / f"{number}.{turn % 5}", root / f"{number}")
threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
shutil.copytree(root / "c", root / "d"); shutil.rmtree(root / "c")
os.chdir(root); open("here", "w").write("relative")
""")
    disk = disk_of(recording)
    there = {
        str(path.relative_to(recording.root)): path.read_bytes()
        for path in recording.root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    assert files(disk.now()) == there
    assert disk.now()["link"] == "three"


def test_a_file_is_the_one_of_before_or_the_new_one(recorded: Callable[[str], Recording]) -> None:
    recording = recorded("""
from rlboost_jax.platform import durable
durable.make_folder(root / "new" / "inner")
durable.write(root / "new" / "inner" / "file", b"before")
(root / "done").touch()
durable.keep(root / "new" / "inner" / "file", b"after" * 1000)
""")
    made = [operation.path for operation in read_log(recording.log)].index(f"{recording.root}/done")
    for done, tree in states(recording):
        content = files(tree).get("new/inner/file")
        assert content in (b"before", b"after" * 1000, *([None] if done <= made else [])), done
    assert content == b"after" * 1000  # with nothing left to do, in the worst case too


def test_a_tree_under_its_own_name_is_whole(recorded: Callable[[str], Recording]) -> None:
    recording = recorded("""
from rlboost_jax.platform import durable
(root / "model.partial" / "inner").mkdir(parents=True)
(root / "model.partial" / "inner" / "weights").write_bytes(b"w" * 5000)
(root / "model.partial" / "config.json").write_bytes(b"{}")
durable.sync_tree(root / "model.partial")
durable.replace(root / "model.partial", root / "model")
""")
    whole = {"model/inner/weights": b"w" * 5000, "model/config.json": b"{}"}
    for _, tree in states(recording):
        found = {name: data for name, data in files(tree).items() if name.startswith("model/")}
        assert "model" not in tree or found == whole
    assert found == whole


def test_secrets_are_whole_or_made_anew(recorded: Callable[[str], Recording]) -> None:
    """What lets others in is never empty, and once a manager has begun it stays what it was."""
    recording = recorded("""
import datetime
from rlboost_jax.trust import authority, run_files
from rlboost_jax.trust.seal import prepare_seal
def begin():
    run_files.read_tokens(root)
    folders = [root / name for name in ("authority", "join", "trainer")]
    now = datetime.datetime.now(datetime.UTC)
    names = dict(zip(("authority", "servers", "trainer"), folders))
    authority.prepare(**names, names=["localhost"], now=now)
    prepare_seal(folders[2], [folders[1]])
begin()
(root / "begun").touch()
begin()
""")
    last = files(disk_of(recording).now())
    begun = [o.path for o in read_log(recording.log)].index(f"{recording.root}/begun")
    assert len(last) == 16  # two tokens, three pairs, an authority and its copies, seals, `begun`
    for done, tree in states(recording):
        found = {n: d for n, d in files(tree).items() if not n.endswith((".part", "begun"))}
        assert found.items() <= last.items(), done
        assert done <= begun or found.keys() == last.keys() - {"begun"}, done


def test_rows_before_a_sync_last_and_so_does_their_file_made_anew(
    recorded: Callable[[str], Recording],
) -> None:
    recording = recorded("""
from rlboost_jax.observe.json_lines import StepLines
lines = StepLines(root / "rows")
for step in range(3):
    lines.write([{"step": step, "text": "x" * 700}])
lines.sync()
(root / "synced").touch()
lines.write([{"step": 3}])
StepLines(root / "rows", step=3).close()
""")
    synced = [o.path for o in read_log(recording.log)].index(f"{recording.root}/synced")
    last = files(disk_of(recording).now())["rows"]
    for done, tree in states(recording):
        assert done <= synced or files(tree)["rows"].startswith(last), done


def test_a_version_is_written_without_a_sync(recorded: Callable[[str], Recording]) -> None:
    """Servers wait for it, and after a power cut it is written anew."""
    recording = recorded("""
import numpy as np
from rlboost_jax.weights.snapshots import SnapshotStore
store = SnapshotStore(root / "snapshots", dtype="bfloat16", keep=1)
params = {"a": {"kernel": np.ones((4, 8), np.float32)}, "b": np.zeros(5, np.float32)}
store.write_base({"c": np.ones(3, np.float32)})
for version in range(2):
    store.write(version, params, "digest")
store.prune()
""")
    kinds = {operation.kind for operation in read_log(recording.log)}
    assert Kind.WRITE in kinds and Kind.SYNC not in kinds


JOURNAL = """
from rlboost_jax.manager.journal_entries import *
from rlboost_jax.manager.service.journal_files import JournalFiles
from tests.manager.fakes import RUN
from tests.manager.test_journal_entries import collected, opened, run_state
journal = JournalFiles(root / "journal", RUN)
journal.read()
for step in range(4):
    journal.append([opened(step), run_state(joined=step)])
    for sample in range(3):
        journal.append([collected(step, sample, 200)])
    if step:
        journal.append([Forgotten(committed=step - 1)])
journal.close()
"""


def test_names_and_money_outlive_the_journals_that_said_them(
    recorded: Callable[[str], Recording], tmp_path: Path
) -> None:
    """Before a journal is removed, the next one has them on the disk."""
    recording = recorded(JOURNAL)
    removed, operations = [], read_log(recording.log)
    for number, tree in states(recording):
        gone = [o.path for o in operations[:number] if o.kind is Kind.UNLINK]
        if len(removed) < len(gone):
            removed = gone
        if not isinstance(tree.get("journal"), dict):
            assert not removed
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        write_tree(tree["journal"], folder / "journal")
        journal = JournalFiles(folder / "journal", RUN)
        entries, _ = journal.read()
        journal.append([BatchOpened(begin=begin_batch(9, 9, "d"), at=0.0)])  # and it goes on
        journal.close()
        kept = [entry.joined for entry in entries if isinstance(entry, RunState)]
        # Journal n says with its first bytes what step n - 1 had: that is what has to be left.
        assert max(kept, default=-1) >= len(removed) - 1, number
        shutil.rmtree(folder)
    assert len(removed) == 3


def test_a_sync_that_a_step_waits_for_is_noticed() -> None:
    def write(thread: int, path: str) -> Operation:
        return Operation(Kind.WRITE, 1, thread, f"/d/run/{path}", "", 0, b"")

    def sync(thread: int, path: str) -> Operation:
        return Operation(Kind.SYNC, 1, thread, f"/d/run/{path}", "", 0, b"")

    step = [write(2, "journal/1"), write(1, "metrics.jsonl"), write(3, "checkpoints/1/d")]
    aside = [sync(3, "checkpoints/1/d"), sync(3, "metrics.jsonl")]
    assert History([*step, *aside, *step], Path("/d")).waited_for() == []
    for late in (sync(1, "checkpoints/1/d"), sync(2, "journal/1"), sync(4, "snapshots/1/a")):
        assert History([*step, late, *step], Path("/d")).waited_for() == [late]


def test_a_cut_that_loses_what_was_promised_is_noticed() -> None:
    """The judge of crashed runs can say no."""
    promise = Promise(
        steps=2,
        checkpoints={2: {"state": {"d": b"arrays"}}},
        needed={"join/token": b"t"},
        rows=['{"step": 0}\n', '{"step": 1}\n'],
    )
    rows = b'{"step": 0}\n{"step": 1}\n{"st'
    good: Tree = {
        "checkpoints": {"2": {"state": {"d": b"arrays"}}},
        "join": {"token": b"t"},
        "metrics.jsonl": rows,
    }
    ever = {"join/token": {b"t"}}
    assert broken(Cut(1, "all", good, promise, ever)) == []
    assert len(broken(Cut(1, "all", None, promise, ever))) == 1
    for worse, count in (
        ({**good, "checkpoints": {"2": {"state": {"d": b""}}}}, 1),
        ({**good, "metrics.jsonl": rows[:20]}, 2),
    ):
        assert len(broken(Cut(1, "all", worse, promise, ever))) == count
    assert len(broken(Cut(1, "all", {**good, "join": {"token": b""}}, promise, ever))) == 2


def test_a_checkpoint_without_the_rows_before_it_is_noticed() -> None:
    """A start goes on from it, though nobody had said yet that it lasts."""
    tree: Tree = {"checkpoints": {"1": {}}, "metrics.jsonl": bytes(20)}
    (line,) = broken(Cut(1, "zeros", tree, Promise(), {}))
    assert "checkpoint 1" in line and "[0]" in line
    tree["metrics.jsonl"] = b'{"step": 0}\n'
    assert broken(Cut(1, "zeros", tree, Promise(), {})) == []
