"""Copies of runs: what they hold, what may go wrong on the way, and what comes back."""

import hashlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.cli import restore as command
from rlboost_jax.learner.checkpoints import run_copies
from rlboost_jax.learner.checkpoints.run_copies import (
    CannotCopy,
    CannotRestore,
    RunCopies,
    restore,
    steps_of,
)
from rlboost_jax.platform import at_rest
from rlboost_jax.platform.object_store import ObjectStore, StoreFailed

pytest.importorskip("obstore", reason="the extra store")
SECRETS = ("trainer/token", "authority/key.pem", "join/token", "page/token", "lock")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(f"file://{tmp_path}/store", setting="test")


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for name in (*SECRETS, "journal/1", "compiled/program", "snapshots/3/leaf"):
        write(folder / name, b"not for others")
    write_config(folder, "one")
    write(folder / "metrics.jsonl", b'{"step": 0}\n')
    write(folder / "base/0/state/leaf", b"base" * 100)
    checkpoint(folder, 1)
    return folder


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_config(folder: Path, run_id: str) -> None:
    write(folder / "config.json", json.dumps(at_rest.sealed({"run_id": run_id})).encode())


def checkpoint(folder: Path, step: int, size: int = 1000) -> None:
    write(folder / f"checkpoints/{step}/state/leaf", bytes([step]) * size)
    write(folder / f"checkpoints/{step}/digests.json", b"{}")


def copied(workdir: Path, store: ObjectStore, *steps: int, **more: Any) -> list[str]:
    """Copy steps one after the other; returns the lines."""
    lines: list[str] = []
    for step in steps:
        with RunCopies(workdir, store, keep=2, note=lines.append, **more) as copies:
            copies.copy(step)
    return lines


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_comes_back_is_what_the_run_needs_and_no_secret(workdir, store, tmp_path):
    assert copied(workdir, store, 1) == []
    assert restore(store, tmp_path / "new") == 1
    found = tree(tmp_path / "new")
    assert found.keys() == {
        *("config.json", "metrics.jsonl", "base/0/state/leaf"),
        *("checkpoints/1/state/leaf", "checkpoints/1/digests.json"),
    }
    assert all(found[name] == (workdir / name).read_bytes() for name in found)
    everything = b"".join(tree(tmp_path / "store").values())
    assert b"not for others" not in everything


def test_the_newest_are_kept_and_what_they_share_is_there_once(workdir, store, tmp_path):
    for step in (1, 2, 3):
        checkpoint(workdir, step)
        copied(workdir, store, step)
    assert steps_of(store) == [2, 3]
    sizes = [len(data) for name, data in tree(tmp_path / "store").items() if "objects" in name]
    assert sizes.count(400) == 1 and sizes.count(1000) == 2  # base; two checkpoints
    assert restore(store, tmp_path / "old", 2) == 2
    with pytest.raises(CannotRestore, match="no such copy of a run; there are 2, 3"):
        restore(store, tmp_path / "other", 1)


def test_rows_that_are_written_meanwhile_are_cut_where_they_were(
    workdir, store, tmp_path, monkeypatch
):
    """A file that grows is copied as long as it was when its turn came."""
    put = store.put

    def grows(name: str, data: Any) -> None:
        with open(workdir / "metrics.jsonl", "ab") as file:
            file.write(b'{"step": 1}\n')
        put(name, data)

    monkeypatch.setattr(store, "put", grows)
    assert copied(workdir, store, 1) == []
    restore(store, tmp_path / "new")
    rows = (tmp_path / "new" / "metrics.jsonl").read_bytes()
    assert (workdir / "metrics.jsonl").read_bytes().startswith(rows) and rows.endswith(b"\n")


def test_a_file_that_changes_meanwhile_is_in_no_copy(workdir, store, monkeypatch):
    put, leaf = store.put, workdir / "checkpoints/1/state/leaf"
    digest = hashlib.sha256(leaf.read_bytes()).hexdigest()

    def changes(name: str, data: Any) -> None:
        if name.endswith(digest):
            leaf.write_bytes(b"!" * leaf.stat().st_size)
        put(name, data)

    monkeypatch.setattr(store, "put", changes)
    (line,) = copied(workdir, store, 1)
    assert "checkpoint 1 was not copied" in line and "changed while it was copied" in line
    assert steps_of(store) == []
    for name, data in ((n, store.read(n, 2**20)) for n in store.names("objects")):
        assert hashlib.sha256(data).hexdigest() == name.rpartition("/")[2]


def test_a_store_that_fails_costs_a_line_and_no_more(workdir, store, monkeypatch):
    fails = threading.Event()
    put = store.put

    def put_or_fail(name: str, data: Any) -> None:
        if fails.is_set():
            raise StoreFailed("cannot put it: slow down")
        put(name, data)

    monkeypatch.setattr(store, "put", put_or_fail)
    lines: list[str] = []
    for step in (2, 3):
        checkpoint(workdir, step)
    noted = threading.Semaphore(0)

    def note(line: str) -> None:
        lines.append(line)
        noted.release()

    with RunCopies(workdir, store, keep=2, note=note) as copies:
        fails.set()
        copies.copy(1)
        assert noted.acquire(timeout=60)
        fails.clear()
        copies.copy(3)
    assert copies.copied == 3 and steps_of(store) == [3]
    assert "checkpoint 1 was not copied" in lines[0] and "slow down" in lines[0]
    assert lines[1].startswith("checkpoint 3 is in ") and len(lines) == 2


def test_what_is_copied_is_held_and_only_the_newest_waits(workdir, store, monkeypatch):
    begun, go, put = threading.Semaphore(0), threading.Semaphore(0), store.put

    def waits(name: str, data: Any) -> None:
        begun.release()
        go.acquire()
        put(name, data)

    for step in (2, 3):
        checkpoint(workdir, step)
    with RunCopies(workdir, store, keep=9) as copies:
        monkeypatch.setattr(store, "put", waits)
        copies.copy(1)
        begun.acquire()
        held, copied_so_far = list(copies.held), copies.copied
        copies.copy(2)
        copies.copy(3)
        shutil.rmtree(workdir / "checkpoints/2")  # it is not the turn of that one any more
        go.release(1000)
    assert (held, copied_so_far) == ([1], None)
    assert steps_of(store) == [1, 3] and list(copies.held) == []


def test_the_end_of_a_run_does_not_wait_for_ever(workdir, store, monkeypatch):
    go = threading.Event()
    lines: list[str] = []
    with RunCopies(workdir, store, keep=2, note=lines.append, close_seconds=0.05) as copies:
        monkeypatch.setattr(store, "put", lambda name, data: go.wait(60))
        copies.copy(1)
    go.set()
    assert "checkpoint 1 is not in" in lines[0] and "has none" in lines[0]


def test_an_address_belongs_to_one_run(workdir, store, tmp_path):
    copied(workdir, store, 1)
    write_config(workdir, "two")
    with pytest.raises(CannotCopy, match=r"which has copies of another run \(one…\); choose"):
        RunCopies(workdir, store, keep=2)
    store.delete(store.names("copies"))
    assert copied(workdir, store, 1) == []  # the other never made any


@pytest.mark.parametrize("what", ["object", "short", "missing", "list", "names", "step"])
def test_a_damaged_copy_is_refused_and_nothing_is_left(workdir, store, tmp_path, what):
    copied(workdir, store, 1)
    (largest,) = (n for n in store.names("objects") if store.size(n) == 1000)
    text = store.read("copies/1.json", 2**20)
    match what:
        case "object":
            store.put(largest, b"?" * 1000)
        case "short":
            store.put(largest, b"?")
        case "missing":
            store.delete([largest])
        case "list":
            store.put("copies/1.json", text.replace(b"1000", b"1001", 1))
        case "names":
            files = {"../outside": [1, "0" * 64]}
            values = at_rest.sealed({"run_id": "one", "step": 1, "files": files})
            store.put("copies/1.json", json.dumps(values).encode())
        case "step":
            store.put("copies/7.json", text)
    with pytest.raises(
        CannotRestore, match=r"damaged|has other bytes|cannot get|not the list|names"
    ):
        restore(store, tmp_path / "new")
    assert not (tmp_path / "new").exists() and not (tmp_path / "outside").exists()


def test_the_command(workdir, store, tmp_path, capsys):
    copied(workdir, store, 1)
    folder = tmp_path / "new"
    assert command.main([store.url, f"--workdir={folder}"]) == 0
    assert "has the run as of step 1" in capsys.readouterr().out
    assert command.main([store.url, f"--workdir={folder}"]) == 2
    assert "is not empty; choose another --workdir" in capsys.readouterr().err
    assert command.main(["nowhere", f"--workdir={tmp_path / 'other'}"]) == 2
    assert "'nowhere' is no address of a store" in capsys.readouterr().err


def test_all_that_is_copied_belongs_to_a_run():
    for name in (*run_copies.FILES, *run_copies.FOLDERS):
        assert not name.startswith(("join", "trainer", "authority", "page", "gateway"))
