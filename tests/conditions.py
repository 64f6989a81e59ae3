"""Machines that are worse than this one: busy with other things, or mean with their cores."""

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 100_000
LOOK_SECONDS = 0.05


def _spin() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run so many other processes that compute all the time."""
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


@contextlib.contextmanager
def throttled(share: float, processes: Callable[[], dict[int, str]]) -> Iterator[None]:
    """Each process gets no more than that share of a core, by a control group of its own.

    A process has its parent's group for the fraction of a second until it is seen.

    Args:
        processes: that live now, by their ids.

    Raises:
        OSError: this system has no control groups, or they are not ours to make.
    """
    ended = threading.Event()
    made: dict[int, Path] = {}

    def keep_watch() -> None:
        while not ended.wait(LOOK_SECONDS):
            living = processes()
            for pid in made.keys() - living.keys():
                with contextlib.suppress(OSError):  # threads of it still end: a look later
                    made[pid].rmdir()
                    del made[pid]
            for pid in living.keys() - made.keys():
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    made[pid] = _group(pid, share)

    _group(0, share).rmdir()  # it can be done
    watch = threading.Thread(target=keep_watch, name="throttle", daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()
        for group in made.values():
            with contextlib.suppress(OSError):
                group.rmdir()


def _group(pid: int, share: float, groups: Path = GROUPS) -> Path:
    """A group with that share of a core, and the process in it; 0: with nobody in it."""
    quota = round(share * PERIOD_MICROSECONDS)
    old = groups / "cpu"  # version 1 of control groups
    group = (old if old.is_dir() else groups) / f"rlboost-tests-{os.getpid()}-{pid}"
    group.mkdir(exist_ok=True)
    if old.is_dir():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
    if pid:
        (group / "cgroup.procs").write_text(str(pid))
    return group
