"""The publisher's thread against a store that writes when the test lets it."""

import errno
import os
import re
import threading
from pathlib import Path

import pytest

from rlboost_jax.learner.publisher import Publisher, SnapshotNotWritten
from rlboost_jax.messages import Manifest
from rlboost_jax.platform import disk_thread
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.patience import PATIENCE_SECONDS

DISK_SECONDS = 10_000.0  # which the process's own looks do not come to


class Store(SnapshotStore):
    """Each write waits for `go`; versions of `broken` cannot be written."""

    folder = Path("snapshots")

    def __init__(self, broken=(), error=None):
        self.broken, self.error = broken, error or OSError("no space left")
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.written, self.pruned, self.packed = [], [], []
        self.packing, self.slow = threading.Semaphore(0), False

    def write(self, version, host_params, params_digest):
        self.begun.release()
        assert self.go.acquire(timeout=PATIENCE_SECONDS)
        if version in self.broken:
            raise self.error
        self.written.append((version, host_params, params_digest))
        return Manifest(
            version=version, directory="", params_digest=params_digest, list_sha256="list"
        )

    def make_packs(self, manifest, stop):
        """Where `slow`: until there is something else to do."""
        self.packing.release()
        while self.slow and not stop():
            pass
        self.packed.append(manifest.version)

    def prune(self, in_use=()):
        self.pruned.append(set(in_use))
        return ()


class Desk:
    """A publisher, what it announced and what it reported."""

    def __init__(self, store):
        self.store, self.announced, self.reported = store, [], []
        self.heard = threading.Event()
        self.publisher = Publisher(
            store,
            announce=lambda manifest: self.announced.append(manifest.version),
            in_use=lambda: (3,),
            report=self.report,
            disk_seconds=DISK_SECONDS,
        )

    def report(self, text):
        self.reported.append(text)
        self.heard.set()

    def submit(self, version, oldest=None):
        self.publisher.submit(version, {"of": version}, f"digest {version}", oldest=oldest)

    def wait_for_write(self):
        assert self.store.begun.acquire(timeout=PATIENCE_SECONDS)


def test_versions_are_written_announced_and_tidied_up_after_in_order():
    desk = Desk(Store())
    for version in (5, 6):
        desk.submit(version)
        desk.wait_for_write()
        desk.store.go.release()
    desk.publisher.close()
    assert desk.store.written == [(v, {"of": v}, f"digest {v}") for v in (5, 6)]
    assert desk.announced == [5, 6]
    assert desk.store.pruned == [{5, 3}, {6, 3}]
    assert not desk.reported


def test_packs_come_after_the_announcement_and_delay_no_version():
    desk = Desk(Store())
    desk.store.slow = True
    for version in (5, 6):
        desk.submit(version)
        desk.wait_for_write()
        desk.store.go.release()
        assert desk.store.packing.acquire(timeout=PATIENCE_SECONDS)
        assert desk.announced[-1] == version and version not in desk.store.packed
    desk.publisher.close()
    assert desk.store.packed == [5, 6]
    assert not desk.reported


def test_packs_that_the_disk_does_not_take_are_one_line_and_cost_no_version():
    class Full(Store):
        def make_packs(self, manifest, stop):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    desk = Desk(Full())
    for version in (5, 6):
        desk.submit(version)
        desk.wait_for_write()
        desk.store.go.release()
    desk.publisher.close()
    assert desk.announced == [5, 6] and desk.store.pruned == [{5, 3}, {6, 3}]
    assert [
        re.search("version (.) has no differences.*No space left", x)[1] for x in desk.reported
    ] == [
        "5",
        "6",
    ]


def test_only_the_newest_version_waits_and_nobody_waits_for_it():
    desk = Desk(Store())
    desk.submit(0)
    desk.wait_for_write()
    for version in (1, 2, 3):
        desk.submit(version)  # the disk is busy with version 0 all the while
    desk.store.go.release()
    desk.wait_for_write()
    desk.store.go.release()
    desk.publisher.close()
    assert desk.announced == [0, 3]


def test_versions_that_open_batches_need_are_all_written_and_kept():
    """Version 1 is not needed any more when the writer comes to it; 2 is, although 3 is newer."""
    desk = Desk(Store())
    desk.submit(0)
    desk.wait_for_write()
    for version, oldest in ((1, 0), (2, 1), (3, 2)):
        desk.submit(version, oldest)
    for _ in range(2):
        desk.store.go.release()
        desk.wait_for_write()
    desk.store.go.release()
    desk.publisher.close()
    assert desk.announced == [0, 2, 3]
    assert desk.store.pruned == [{0, 3}, {1, 2, 3}, {2, 3}]


def test_the_end_waits_for_what_is_being_written_only():
    desk = Desk(Store())
    desk.submit(0)
    desk.wait_for_write()
    desk.submit(1)
    desk.store.go.release(2)
    desk.publisher.close()
    assert desk.announced in ([0], [0, 1]), "version 1 if the writer had come to it"


@pytest.mark.parametrize(
    "error, said",
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no space (or no inode) is left"),
        (RuntimeError("can't start new thread"), "raise `ulimit -u` or pids.max"),
    ],
)
def test_what_the_host_lacks_is_said(error: Exception, said: str) -> None:
    desk = Desk(Store(broken={1}, error=error))
    desk.submit(1)
    desk.store.go.release()
    assert desk.heard.wait(PATIENCE_SECONDS)
    (line,) = desk.reported
    assert said in line and line.endswith("then the same command goes on")
    desk.publisher.close()


def test_a_version_that_cannot_be_written_stops_the_run_at_the_next():
    desk = Desk(Store(broken={1}))
    desk.submit(1)
    desk.store.go.release()
    assert desk.heard.wait(PATIENCE_SECONDS)
    assert desk.reported == ["version 1 could not be published: no space left"]
    with pytest.raises(SnapshotNotWritten, match=r"version 1 .*: no space left"):
        desk.submit(2)
    desk.publisher.close()
    assert not desk.announced


def test_the_last_version_is_no_reason_to_fail():
    desk = Desk(Store(broken={1}))
    desk.submit(1)
    desk.wait_for_write()
    desk.store.go.release()
    desk.publisher.close()
    assert len(desk.reported) == 1


def test_a_write_that_hangs_ends_the_run_at_the_next_and_is_waited_for_by_nobody():
    desk = Desk(Store())
    desk.submit(1)
    desk.wait_for_write()
    while not desk.heard.is_set():
        disk_thread.look_at_all(DISK_SECONDS)
    (line,) = desk.reported
    assert re.match(
        r"no version can be published: version 1 got nothing done for \d+ s \(writing",
        line,
    )
    with pytest.raises(SnapshotNotWritten, match="got nothing done"):
        desk.submit(2)
    with pytest.raises(SnapshotNotWritten, match="got nothing done"):
        desk.publisher.open(1)
    desk.publisher.close()
    assert not desk.announced
    desk.store.go.release()
