"""Run what every change must pass, all of it, and say at the end what did not.

    python -m tests                      lint, types, unit and system tests, and guards
    python -m tests unit system          some of these parts
    python -m tests --order=7            tests in a random order, the same for the same number
    python -m tests --jobs=4             test processes at a time
    python -m tests --busy=8             beside so many processes that compute all the time
    python -m tests --share=0.25         no process gets more of a core (for root, on Linux)
    python -m tests --speed=0.1 system   engines and learners that seem ten times slower (or faster)

A part that fails does not keep the others from running. A run that is green leaves nothing behind,
or it would not be green: no process, and so no port, no folder, no file in the checkout.
Of a red one the folders of failed tests are kept.
"""

import argparse
import contextlib
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.conditions import busy, throttled
from tests.processes import marked

ROOT = Path(__file__).resolve().parent.parent
MARK = "RLBOOST_TEST_SESSION"  # in the environment of every process that is started
PART_MARK = "RLBOOST_TEST_PART"  # the same, for those of one part
SLOWEST = 10  # tests and files shown
NICENESS = "15"  # of a part beside another
# That one begins with, the longest first: what comes last has a core for itself. The first three
# compile programs of different sizes; all others wait for those of `short_and_calm`.
LONGEST = (
    *("test_tools_quickstart.py", "test_hf_tiny.py", "test_by_hand.py", "test_gateway.py"),
    *("test_durability.py", "test_turns.py", "test_real.py", "test_orphans.py", "test_judged.py"),
    *("test_sharing.py", "test_notices.py", "test_ec2.py", "test_mistakes.py"),
)
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Part:
    """Commands that are one part, and what to name when it is to be run alone.

    Attributes:
        tests: the last command is pytest.
        beside: it begins with the next part and takes the time that this and later ones leave to
            it. What it has to say comes after one of them, or at the end.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    tests: bool = False
    beside: bool = False


@dataclass
class Result:
    part: Part
    seconds: float
    failed: list[str] = field(default_factory=list)  # commands that show it again
    left: list[str] = field(default_factory=list)  # processes it did not end
    tally: dict[str, dict[str, Any]] = field(default_factory=dict)  # of `tests/tally.py`


def parts(jobs: int, order: int | None) -> list[Part]:
    """All there are, in the order in which they run.

    Args:
        jobs: test processes at a time; 0: as many as there are cores, at most 4.
        order: seed of a random order; None: the usual one.
    """
    pytest: tuple[str, ...] = (sys.executable, "-m", "pytest", "-q", "-p", "tests.tally")
    if order is not None:
        pytest += (f"--random-order-seed={order}",)
    cores = ("--maxprocesses=4", "-n", str(jobs or "auto"))
    several = ("-n", str(jobs or min(4, 1 + (os.cpu_count() or 1))))
    system = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    system = [name for name in system if "mark.system" in (ROOT / name).read_text()]
    rank = {name: place for place, name in enumerate(LONGEST)}
    system.sort(key=lambda name: rank.get(Path(name).name, len(LONGEST)))
    unit = (*pytest, "-m", "not soak and not system and not h100", *cores, "--dist=worksteal")
    by_file = ("--dist=loadfile", "--no-loadscope-reorder")
    whole = (*pytest, "-m", "system and not soak", *several, *by_file, *system)
    guards = (*pytest, "-m", "h100", *cores, "--dist=worksteal", "tests/h100")
    ruff = str(BIN / "ruff")
    return [
        Part("lint", ((ruff, "check", "."), (ruff, "format", "--check", "."))),
        Part("types", ((str(BIN / "mypy"),),), beside=True),
        Part("h100", (guards,), tests=True, beside=True),
        Part("unit", (unit,), tests=True),
        Part("system", (whole,), tests=True),
    ]


def carry_out(part: Part, root: Path, environment: dict[str, str], folder: Path) -> Result:
    """Run a part of a checkout to its end."""
    began = time.monotonic()
    result = Result(part, 0.0)
    environment = {**environment, PART_MARK: f"{environment[MARK]} {part.name}"}
    said = folder / f"{part.name}.txt"
    with said.open("w") if part.beside else contextlib.nullcontext() as out:
        if not part.beside:
            print(f"\n{part.name}", flush=True)
        for command in part.commands:
            file = folder / f"{part.name}.json"
            more = (f"--tally={file}", f"--basetemp={folder / part.name}") if part.tests else ()
            nice = ("nice", "-n", NICENESS) if part.beside else ()
            code = subprocess.call(
                [*nice, *command, *more], cwd=root, env=environment, stdout=out, stderr=out
            )
            if part.tests and file.exists():
                result.tally = json.loads(file.read_text())
            if code != 0:
                found = [t for t, o in result.tally.get("outcomes", {}).items() if o == "failed"]
                alone: list[tuple[str, ...]] = [(sys.executable, "-m", "pytest", t) for t in found]
                result.failed += [_shown(each, root) for each in alone or [command]]
    result.left = clear_away(f"{PART_MARK}={environment[PART_MARK]}")
    result.seconds = time.monotonic() - began
    return result


def carry_out_all(
    parts: Sequence[Part], root: Path, environment: dict[str, str], folder: Path
) -> Iterator[Result]:
    """Run parts, each result as it comes: those beside others between them, or at the end."""
    beside: list[Future[Result]] = []
    with ThreadPoolExecutor() as threads:
        try:
            for index, part in enumerate(parts):
                if part.beside and not all(later.beside for later in parts[index:]):
                    beside.append(threads.submit(carry_out, part, root, environment, folder))
                    continue
                yield carry_out(replace(part, beside=False), root, environment, folder)
                over = (
                    beside if index + 1 == len(parts) else [each for each in beside if each.done()]
                )
                beside = [each for each in beside if each not in over]
                for future in over:
                    result = future.result()
                    print(f"\n{result.part.name}", flush=True)
                    print((folder / f"{result.part.name}.txt").read_text(), end="", flush=True)
                    yield result
        except BaseException:
            clear_away(f"{MARK}={environment[MARK]}")  # or the threads would be waited for
            raise


def _shown(command: Sequence[str], root: Path) -> str:
    """As one types it into a shell."""
    program = Path(command[0])
    name = str(program.relative_to(root)) if program.is_relative_to(root) else command[0]
    return shlex.join([name, *command[1:]])


def processes_left(mark: str) -> dict[int, str]:
    """Commands of processes with that mark that were started here and still live."""
    return {p: c for p, c in marked(mark).items() if p != os.getpid()}


def clear_away(mark: str) -> list[str]:
    """End what is left; returns a line for each."""
    found = processes_left(mark)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {pid} was left running: {command[:120]}" for pid, command in found.items()]


def files_of_checkout(root: Path) -> set[str]:
    """List files that version control neither knows nor ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return set(listed.stdout.splitlines())


def report(results: Sequence[Result], left: Sequence[str], seconds_in_all: float) -> None:
    seconds: Counter[str] = Counter()  # by test
    reasons: Counter[str] = Counter()
    for result in results:
        seconds.update(result.tally.get("seconds", {}))
        reasons.update(result.tally.get("reasons", {}).values())
    if seconds:
        files: Counter[str] = Counter()
        for test, value in seconds.items():
            files[test.partition("::")[0]] += value
        for title, counted in (("tests", seconds), ("files", files)):
            print(f"\nslowest {SLOWEST} {title}")
            for name, value in counted.most_common(SLOWEST):
                print(f"  {value:6.1f} s  {name}")
    if reasons:
        print("\nskipped")
        for reason, count in reasons.most_common():
            print(f"  {count:6}    {reason}")
    print(f"\n  {'':8} {'passed':>7} {'failed':>7} {'skipped':>8} {'minutes':>8}")
    for result in results:
        counts = Counter(result.tally.get("outcomes", {}).values())
        passed, failures, skips = (str(counts[name]) for name in ("passed", "failed", "skipped"))
        if not result.part.tests:
            passed, failures, skips = (
                "" if result.failed else "ok",
                str(len(result.failed) or ""),
                "",
            )
        columns = f"{passed:>7} {failures:>7} {skips:>8} {result.seconds / 60:8.1f}"
        print(f"  {result.part.name:8} {columns}")
    print(f"  {'':8} {'':>7} {'':>7} {'':>8} {seconds_in_all / 60:8.1f}")
    for result in results:
        if workers := result.tally.get("workers"):
            minutes = ", ".join(f"{name} {workers[name] / 60:.1f}" for name in sorted(workers))
            print(f"  minutes of tests by process, {result.part.name}: {minutes}")
    failed = [line for result in results for line in result.failed]
    if failed:
        print("\nfailed; each alone by")
        for line in failed:
            print(f"  {line}")
    if left:
        print("\nleft behind")
        for line in left:
            print(f"  {line}")
    if not failed and not left:
        print("\nall green")


def main(
    arguments: Sequence[str],
    *,
    root: Path = ROOT,
    offered: Sequence[Part] | None = None,
    session: str = "",
    temporary: Path | None = None,
) -> int:
    """Run what the arguments ask for; returns the exit code.

    Args:
        root: of the checkout.
        offered: the parts that there are; left out: `parts`.
        session: marks all processes; left out: a random one.
        temporary: for folders; left out: the system's place for them.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in offered or parts(0, None)]
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    parser.add_argument("--jobs", type=int, default=0, help="left out: by the number of cores")
    parser.add_argument("--order", type=int, help="seed of a random order")
    parser.add_argument("--busy", type=int, default=0, help="processes beside the tests")
    parser.add_argument("--share", type=float, help="of a core, for each process")
    parser.add_argument("--speed", type=float, default=1.0, help="of engines in system tests")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.parts if name not in names]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(names)}")
    if chosen.speed <= 0 or (chosen.share is not None and chosen.share <= 0):
        parser.error(f"--speed={chosen.speed} --share={chosen.share}: more than 0 is needed")

    # Ignored where a shell has started this in the background, and then by all it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    session, before = session or uuid.uuid4().hex, files_of_checkout(root)
    folder = Path(tempfile.mkdtemp(prefix="rlboost-tests-", dir=temporary))
    folder.chmod(0o711)  # a test that acts as another user passes through it
    environment = {
        **os.environ,
        MARK: session,
        "TMPDIR": str(folder),
        "RLBOOST_TEST_SPEED": str(chosen.speed),
    }
    # What one process compiles, some hundred others need not.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    results: list[Result] = []
    left: list[str] = []
    try:
        with contextlib.ExitStack() as conditions:
            conditions.enter_context(busy(chosen.busy))
            if chosen.share is not None:
                own = functools.partial(processes_left, f"{MARK}={session}")
                conditions.enter_context(throttled(chosen.share, own))
            wanted = [
                part
                for part in offered or parts(chosen.jobs, chosen.order)
                if not chosen.parts or part.name in chosen.parts
            ]
            if chosen.busy:  # which leaves no time that a part could take
                wanted = [replace(part, beside=False) for part in wanted]
            for result in carry_out_all(wanted, root, environment, folder):
                results.append(result)
                left += [f"{line} (after {result.part.name})" for line in result.left]
    except KeyboardInterrupt:
        left.append("an interrupted part")
    finally:
        clear_away(f"{MARK}={session}")
        red = bool(left) or any(result.failed for result in results)
        if not red:
            shutil.rmtree(folder, ignore_errors=True)
    left += [f"file {name}" for name in sorted(files_of_checkout(root) - before)]
    report(results, left, time.monotonic() - began)
    if red:
        print(f"\nfolders of failed tests are in {folder}")
    return 1 if red or left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
