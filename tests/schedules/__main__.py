"""Random schedules of faults, each a whole run in virtual time.

    python -m tests.schedules --schedules=300000 --seed=0 [--jobs=2] [--drafts] [--peers]

All cores work on them unless `--jobs` says otherwise. It tells its pace as it goes, and in the end
how long 300,000 schedules take here. With `--drafts` servers draft in all schedules: from likely
texts, stale or foreign ones, or each token twice. With `--peers` servers fetch weights from each
other in all of them. A schedule that fails is printed, cut down to the faults that it takes, as a
Python expression; `--replay='Schedule(…)'` carries it out again.
"""

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from tests.schedules.faults import Fault, Schedule, fails, run, schedule_of, shrink

CHUNK = 250  # schedules handed to a process at a time, at most
SOAK = 300_000  # schedules: those of one promise
REPORT_SECONDS = 30.0
COLLECT_AFTER = 50_000  # objects: those of some ten schedules


def carry_out(
    seeds: range, drafts: bool = False, peers: bool = False
) -> tuple[Counter[str], int, float]:
    """Faults that came about, the first seed that fails (-1 without one), and CPU seconds."""
    seen: Counter[str] = Counter()
    since = time.process_time()
    with few_collections():
        for seed in seeds:
            try:
                seen.update(run(schedule_of(seed, drafts=drafts, peers=peers)).world.seen)
            except Exception:  # shown by `explain`
                return seen, seed, time.process_time() - since
    return seen, -1, time.process_time() - since


@contextmanager
def few_collections() -> Iterator[None]:
    """Look for cycles in what some schedules have left, seldom, and in nothing older."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def explain(seed: int, drafts: bool = False, peers: bool = False) -> str:
    """The smallest schedule that fails in the way of a seed, and how."""
    schedule = shrink(schedule_of(seed, drafts=drafts, peers=peers))
    error = fails(schedule)
    return f"schedule {seed} fails: {type(error).__name__}: {error}\nsmallest: {schedule!r}"


def soak(schedules: int, seed: int, jobs: int, drafts: bool, peers: bool) -> int:
    """Carry out many; returns the exit code."""
    size = max(1, min(CHUNK, schedules // (4 * jobs)))  # few schedules are for all cores too
    chunks = [
        range(first, min(first + size, seed + schedules))
        for first in range(seed, seed + schedules, size)
    ]
    seen: Counter[str] = Counter()
    done, cpu, since = 0, 0.0, time.monotonic()
    shown = since
    each = partial(carry_out, drafts=drafts, peers=peers)
    with multiprocessing.Pool(jobs) as pool:
        for number, result in enumerate(pool.imap(each, chunks)):
            kinds, failed, seconds = result
            if failed >= 0:
                pool.terminate()
                print(explain(failed, drafts, peers), flush=True)
                return 1
            seen.update(kinds)
            done, cpu = done + len(chunks[number]), cpu + seconds
            if time.monotonic() - shown > REPORT_SECONDS or done == schedules:
                shown = time.monotonic()
                print(progress(done, cpu, shown - since), flush=True)
    print("faults:", ", ".join(f"{kind} {count:,}" for kind, count in sorted(seen.items())))
    return 0


def progress(done: int, cpu: float, seconds: float) -> str:
    """One line of how it goes, and how long a soak takes at this pace."""
    return (
        f"{done:,} clean in {seconds:,.0f} s: {done / cpu:,.1f} a second and core, "
        f"{done / seconds:,.1f} a second; {SOAK:,} take {SOAK * seconds / done:,.0f} s"
    )


def main(arguments: Iterable[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.schedules", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--drafts", action="store_true", help="servers draft in all of them")
    parser.add_argument("--peers", action="store_true", help="they fetch weights from each other")
    parser.add_argument("--replay", default="", help="a schedule as it was printed")
    chosen = parser.parse_args(list(arguments))
    if chosen.replay:
        run(eval(chosen.replay, {"Schedule": Schedule, "Fault": Fault}))
        return 0
    return soak(chosen.schedules, chosen.seed, chosen.jobs, chosen.drafts, chosen.peers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
