"""Take from a living process what it may use, and give it back: descriptors, processes, memory."""

import contextlib
import os
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, assert_never, get_args

PIDS = Path("/sys/fs/cgroup/pids")  # of version 1, which one may make folders in
Scarce = Literal["descriptors", "processes", "memory"]
SCARCE: tuple[Scarce, ...] = get_args(Scarce)


def can_count_processes() -> bool:
    """The limit of a user's processes is none for root, so a group of its own counts them."""
    return os.access(PIDS, os.W_OK) and (PIDS / "cgroup.procs").exists()


@contextlib.contextmanager
def without(what: Scarce, pid: int) -> Iterator[None]:
    """While a process has all that it uses now, and no more of it."""
    match what:
        case "descriptors":
            taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
            free = next(number for number in range(len(taken) + 1) if number not in taken)
            with _limited(pid, resource.RLIMIT_NOFILE, free):
                yield
        case "memory":
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            with _limited(pid, resource.RLIMIT_AS, pages * resource.getpagesize()):
                yield
        case "processes":
            with _counted(pid):
                yield
        case _:
            assert_never(what)


@contextlib.contextmanager
def _limited(pid: int, kind: int, most: int) -> Iterator[None]:
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (most, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, kind, before)


@contextlib.contextmanager
def _counted(pid: int) -> Iterator[None]:
    group = PIDS / f"rlboost-test-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text((group / "pids.current").read_text())
        yield
    finally:
        for each in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                (PIDS / "cgroup.procs").write_text(each)
        group.rmdir()
