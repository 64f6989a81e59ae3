"""Kill processes of small runs in every phase of their starts and ends, several in a row.

    python -m tests.kills --runs=200 --seed=1 [--ends=0.3] [--minutes=30] [--keep=FOLDER]

Runs that nothing happens to say which moments the life of each process has
(`tests/system/paced/killed.py`). Then each run has a plan: a process (or its relay), one of its
moments, and how often it is killed there, one start after the other. A supervisor that was killed
is started again by the same command, and somebody looks at the page. Each run has to end well, with
the digests of the calm run, or in one line; nothing may be left behind.

Exit status: 0 where that is so of all runs, 1 where not.
"""

import argparse
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.powercut.__main__ import SMALL
from tests.system import judged
from tests.system.harness import REPOSITORY, SPREAD, Run, wait_until
from tests.system.paced.killed import RELAY
from tests.system.test_compiled import page_of

SECONDS = 600.0  # for a run to end by itself
VISIT_SECONDS = 0.5  # between two looks at the page
LAST = 12  # moments that are the end of a process
TIMES = (1, 1, 2, 3)  # kills in a row
RELAYED = ("supervisor", "trainer", "manager", "server")  # have a relay
RELAYS = f"{RELAY} 1"  # the last moment without it
COMMON = (
    *(*SPREAD, "seed=11", "num_steps=2", "fleet.max_instances=1"),
    "observe.alerts.command=('true',)",
)
SYSTEM = REPOSITORY / "tests" / "system"
VARIANTS = {
    "judged": (SYSTEM / "judged.py", (*COMMON, "rewards.workers=1")),
    "turns": (
        SYSTEM / "calculating.py",
        (*SMALL, *COMMON, "warmup.max_updates=0", "warmup.habit_updates=0"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    variant: str
    who: str
    moment: str
    times: int
    relay: bool

    def __str__(self) -> str:
        victim = f"relay of {self.who}" if self.relay else self.who
        return f"{self.variant}: {victim}, {self.times} x at {self.moment}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run.

    Attributes:
        kills: that were made; 0 where the moment did not come.
        line: the last that it said, where it ended otherwise than well.
        faults: what may not be.
    """

    kills: int
    line: str
    faults: tuple[str, ...]
    seconds: float


class Place:
    """A folder for one run and all that it writes."""

    def __init__(self, folder: Path, variant: str) -> None:
        self.folder, self.kills, self.temporary = folder, folder / "kills", folder / "tmp"
        for each in (self.kills, self.temporary):
            each.mkdir(parents=True)
        config, settings = VARIANTS[variant]
        if variant == "judged":  # the same for all runs
            own = f"data.source={folder.parent / 'questions.jsonl'}"
        else:
            own = f"environment.options.log={folder / 'calls'}"
        self.run = Run(
            folder / "run",
            *settings,
            own,
            config=config,
            options=("--supervise", "--max_restarts=5"),
            environment={
                "RLBOOST_TEST_KILLS": str(self.kills),
                "TMPDIR": str(self.temporary),
            },
        )


def moments(record: str) -> dict[str, list[str]]:
    """Moments of each process, in the order in which the first of its name came to them."""
    found: dict[str, dict[str, None]] = {}
    for line in record.splitlines():
        name, _, moment = line.partition(": ")
        found.setdefault(name, {})[moment] = None
    return {name: list(each) for name, each in found.items()}


def planned(rng: random.Random, known: dict[str, dict[str, list[str]]], ends: float) -> Plan:
    """One of all that could be done, each process as often as the others.

    Args:
        ends: share of plans with one of the last moments, which are few among all.
    """
    variant = rng.choice(sorted(known))
    victims = {(who, False): every for who, every in sorted(known[variant].items())}
    for who in RELAYED:
        every = known[variant].get(who, [])
        if with_one := every[every.index(RELAYS) + 1 :] if RELAYS in every else []:
            victims[who, True] = with_one
    (who, relay), every = rng.choice(list(victims.items()))
    moment = rng.choice(every[-LAST:] if rng.random() < ends else every)
    return Plan(variant=variant, who=who, moment=moment, times=rng.choice(TIMES), relay=relay)


def carried_out(place: Place, plan: Plan | None, digests: list[tuple[int, str, str]]) -> Outcome:
    """One run from start to end."""
    if plan is None:
        (place.kills / "record").touch()
    else:
        (place.kills / "plan.json").write_text(json.dumps(vars(plan)))
    began = time.monotonic()
    run, faults = place.run, list[str]()
    try:
        with visited(run):
            code = _ended(run.start(), faults)
            if plan is not None and plan.who == "supervisor" and not plan.relay:
                code = _started_again(run, code, 2 * plan.times, faults)
        assert run.process is not None
        errors = run.process.errors
        said = [line for line in errors.splitlines() if line.strip()]
        line = said[-1] if code and said else ""
        if code and ("Traceback" in errors or not line.startswith(("error:", "the trainer"))):
            faults.append(f"code {code} and no line: {line[-200:]}")
        if code == 0 and digests and run.digests() != digests:
            faults.append("other digests")
        try:
            wait_until(lambda: not run.processes(), "end", 60.0)
        except AssertionError:
            faults += [f"left: {command}" for command in run.processes().values()]
    finally:
        run.close()
    faults += _left(place)
    kills = len(list(place.kills.glob("kill-*")))
    return Outcome(kills=kills, line=line, faults=tuple(faults), seconds=time.monotonic() - began)


def _ended(run: Run, faults: list[str]) -> int | None:
    """Exit code of the process that was started last; None: it does not end."""
    assert run.process is not None
    try:
        return run.process._process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        faults.append(f"it did not end in {SECONDS:g} s")
        return None


def _started_again(run: Run, code: int | None, times: int, faults: list[str]) -> int | None:
    """Exit code of the last start, each as soon as the supervisor before was killed.

    The trainer of one that was killed goes on: a line says so, and the next start waits for it.
    """
    for _ in range(times):
        if code in (0, None):
            break
        if code != -signal.SIGKILL:
            wait_until(lambda: not run.processes(), "end of an orphaned trainer", SECONDS)
        code = _ended(run.start(), faults)
    return code


@contextlib.contextmanager
def visited(run: Run) -> Iterator[None]:
    """Somebody looks at the run's page now and then, where there is one."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(VISIT_SECONDS):
            with contextlib.suppress(Exception):  # it is not there, or just killed
                page_of(run, VISIT_SECONDS)

    visitor = threading.Thread(target=look)
    visitor.start()
    try:
        yield
    finally:
        over.set()
        visitor.join()


def _left(place: Place) -> list[str]:
    """What should not be there any more."""
    left = [str(path) for path in place.temporary.iterdir()]
    for path in place.run.workdir.rglob("*"):
        if path.is_socket() or path.name.endswith((".part", ".tmp")) or "-tmp" in path.name:
            left.append(str(path))
    for name in ("lock", "manager.lock"):
        if _is_used(place.run.workdir / name):
            left.append(f"{name} is held")
    return [f"left: {each}" for each in left]


def _is_used(path: Path) -> bool:
    """Whether a process has locked it."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ends", type=float, default=0.3, help="share of kills at last moments")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so long")
    parser.add_argument("--keep", type=Path, help="keep folders of runs with faults here")
    given = parser.parse_args(arguments)
    end, rng = time.monotonic() + 60 * given.minutes, random.Random(given.seed)
    root = Path(tempfile.mkdtemp(prefix="kills-"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(root / "programs"))
    judged.write_questions(root / "questions.jsonl")
    known, digests, bad, counts = {}, {}, 0, Counter[str]()
    try:
        for variant in sorted(VARIANTS):
            place = Place(root / f"calm-{variant}", variant)
            outcome = carried_out(place, None, [])
            if outcome.faults or outcome.line:
                print(f"calm {variant}: {outcome.line} {outcome.faults}")
                return 1
            known[variant] = moments((place.kills / "record").read_text())
            digests[variant] = place.run.digests()
            sizes = ", ".join(f"{who} {len(each)}" for who, each in known[variant].items())
            print(f"calm {variant}: {outcome.seconds:.0f} s; moments: {sizes}", flush=True)
        for number in range(given.runs):
            if time.monotonic() > end:
                break
            plan = planned(rng, known, given.ends)
            place = Place(root / f"{number:03d}", plan.variant)
            outcome = carried_out(place, plan, digests[plan.variant])
            ended = "fault" if outcome.faults else "line" if outcome.line else "well"
            counts[ended] += 1
            counts["not reached"] += not outcome.kills
            print(
                f"{number:3d} {ended} {outcome.seconds:4.0f} s, {outcome.kills} kills, {plan}"
                f"{outcome.line and f': {outcome.line}'}",
                *outcome.faults,
                sep="\n      ",
                flush=True,
            )
            if outcome.faults:
                bad += 1
                if given.keep:
                    shutil.copytree(place.folder, given.keep / place.folder.name, symlinks=True)
                    shutil.copytree(place.run.logs, given.keep / f"{number:03d}.logs")
            shutil.rmtree(place.folder)
        print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
