"""Does anything grow while a run goes on for hours and its servers come and go?

    python -m benchmarks.endurance --hours=2 --json=benchmarks/results/endurance.json

One real run, whose servers are killed and replaced as its configuration says. Every few seconds:
memory, descriptors and threads of each of its processes, files and bytes of its work directory. The
first quarter is left out (caches fill); what the last quarter's median exceeds the second's by is
growth. Ends with 1 if something has grown by more than `SLACK`.

Rows, events and samples are one file each that grows by a line a step: they are shown, and are no
growth. Memory is what a process has of its own (`RssAnon` and `RssShmem` of /proc), so Linux only.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PROC = Path("/proc")
KIB_PER_MIB = 1024
RECORDS = (".jsonl", ".tfevents")  # a line for each step, server or sample
STEPS = 1_000_000  # more than any run of hours makes
# By how much the last quarter may exceed the second: a share, and a number besides.
SLACK = {
    "processes": (0.0, 3.0),
    "memory_mib": (0.05, 8.0),
    "descriptors": (0.0, 6.0),
    "threads": (0.0, 3.0),
    "files": (0.05, 16.0),
    "bytes": (0.05, 4e6),
}


@dataclass(frozen=True, kw_only=True)
class Look:
    """At one process, or at all of one kind: their number, and the most that one of them has."""

    processes: float = 1.0
    memory_mib: float
    descriptors: float
    threads: float


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Size of a work directory: files and bytes but for `RECORDS`, and bytes of these."""

    files: float
    bytes: float
    record_bytes: float


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What there is after so many seconds, by kind of process; `folder` is the work directory."""

    seconds: float
    steps: int
    kinds: dict[str, Look]
    folder: Folder


def kind_of(command: Sequence[str], parent: str) -> str:
    """What a process is for, by its arguments and by what its parent is."""
    if "rlboost_jax.main" in command:
        return "trainer" if parent == "" else "trainer's children"
    if "rlboost_jax.manager" in command:
        return "manager" if parent in ("", "trainer") else "manager's children"
    if any(argument.endswith("output_relay_process.py") for argument in command):
        return "relays"
    if "rlboost_jax.rollout.zygote" in command:
        return "servers" if parent == "zygote" else "zygote"
    return "others"


def looks(root: int, proc: Path = PROC) -> dict[str, Look]:
    """All that descend from a process, by kind."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if stat[0] not in "ZX":
                    children.setdefault(int(stat[1]), []).append(int(folder.name))
    found: dict[str, list[Look]] = {}
    waiting = [(root, "")]
    while waiting:
        pid, parent = waiting.pop()
        with contextlib.suppress(OSError, KeyError):  # gone meanwhile
            command = (proc / f"{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            kind, look = kind_of(command, parent), _look(proc / str(pid))
            found.setdefault(kind, []).append(look)
            waiting += [(child, kind) for child in children.get(pid, ())]
    return {kind: together(some) for kind, some in found.items()}


def _look(folder: Path) -> Look:
    fields = dict(
        line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
    )
    own = sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    return Look(
        memory_mib=own / KIB_PER_MIB,
        descriptors=len(list((folder / "fd").iterdir())),
        threads=int(fields["Threads"]),
    )


def together(some: Sequence[Look]) -> Look:
    return Look(
        processes=len(some),
        memory_mib=max(each.memory_mib for each in some),
        descriptors=max(each.descriptors for each in some),
        threads=max(each.threads for each in some),
    )


def folder_of(workdir: Path) -> Folder:
    files, size, records = 0, 0, 0
    for folder, _, names in os.walk(workdir):  # passes over what is gone meanwhile
        for name in names:
            with contextlib.suppress(OSError):
                length = os.stat(os.path.join(folder, name)).st_size
                if any(ending in name for ending in RECORDS):
                    records += length
                else:
                    size += length
                    files += 1
    return Folder(files=files, bytes=size, record_bytes=records)


def steps_of(workdir: Path) -> int:
    """Rows of its metrics, which nobody has to read: there are tens of thousands."""
    with contextlib.suppress(OSError):
        return (workdir / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def series(samples: Sequence[Sample]) -> Iterator[tuple[str, str, list[float]]]:
    """Kind, what of it, and its values in order; a kind that is not there counts as nothing."""
    none = Look(processes=0, memory_mib=0, descriptors=0, threads=0)
    for kind in sorted({kind for sample in samples for kind in sample.kinds}):
        for name in asdict(none):
            yield kind, name, [getattr(s.kinds.get(kind, none), name) for s in samples]
    for name in ("files", "bytes"):
        yield "work directory", name, [getattr(s.folder, name) for s in samples]


def quarters(values: Sequence[float]) -> tuple[float, float, float]:
    """Medians of the second, third and last quarter; at least 4 values."""
    size = len(values) // 4
    parts = (values[size : 2 * size], values[2 * size : 3 * size], values[3 * size :])
    second, third, last = (statistics.median(part) for part in parts)
    return second, third, last


def has_grown(name: str, second: float, last: float) -> bool:
    share, number = SLACK[name]
    return last > second * (1 + share) + number


def run(
    config: str, workdir: Path, *, seconds: float, every: float, settings: Iterable[str]
) -> list[Sample]:
    """Samples of a run that is interrupted after so long.

    Raises:
        RuntimeError: it ended before.
    """
    command = [
        *(sys.executable, "-m", "rlboost_jax.main", f"--config={config}", f"--workdir={workdir}"),
        *(f"--config.{each}" for each in (f"num_steps={STEPS}", *settings)),
    ]
    samples: list[Sample] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        began = time.monotonic()
        try:
            while (passed := time.monotonic() - began) < seconds:
                if process.poll() is not None:
                    raise RuntimeError(f"the run ended after {passed:.0f} s: {process.returncode}")
                samples.append(
                    Sample(
                        seconds=passed,
                        steps=steps_of(workdir),
                        kinds=looks(process.pid),
                        folder=folder_of(workdir),
                    )
                )
                time.sleep(every)
        finally:
            process.send_signal(signal.SIGINT)
    return samples


def report(samples: Sequence[Sample]) -> list[str]:
    """Prints the table; returns what has grown."""
    grown: list[str] = []
    print(f"{'':<20} {'':<12} {'2nd quarter':>12} {'3rd':>12} {'last':>12} {'most':>12}")
    for kind, name, values in series(samples):
        second, third, last = quarters(values)
        word = ""
        if has_grown(name, second, last):
            grown.append(f"{kind}: {name} from {second:,.1f} to {last:,.1f}")
            word = "  GROWN"
        print(
            f"{kind:<20} {name:<12} {second:>12,.1f} {third:>12,.1f} {last:>12,.1f} "
            f"{max(values):>12,.1f}{word}"
        )
    first, final = samples[0], samples[-1]
    records = final.folder.record_bytes - first.folder.record_bytes
    steps = final.steps - first.steps
    print(
        f"{steps:,} steps in {final.seconds / 3600:.2f} h; rows, events and samples: "
        f"{records / 1e6:.1f} MB, {records / max(1, steps) / 1e3:.1f} kB a step"
    )
    return grown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.endurance", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds from look to look")
    parser.add_argument("--config", default="configs/quickstart.py")
    parser.add_argument("--set", action="append", default=[], help="section.field=value")
    parser.add_argument("--workdir", type=Path, help="is kept; left out: a temporary one")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    if 3600 * chosen.hours < 8 * chosen.every:
        parser.error(
            f"--hours={chosen.hours:g} is less than eight looks of --every={chosen.every:g} s"
        )
    with contextlib.ExitStack() as stack:
        workdir = chosen.workdir or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        samples = run(
            chosen.config,
            workdir,
            seconds=3600 * chosen.hours,
            every=chosen.every,
            settings=chosen.set,
        )
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(each) for each in samples]) + "\n")
    grown = report(samples)
    print("\n".join(grown) or "nothing has grown")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
