"""What an H100's compiler makes of every program of the runs in `configs/`; no device is needed.

    make h100                              # installs the compiler, 241 MB, and writes the table
    python -m benchmarks.h100 [--only=WORDS] [--json=FILE]

A row is a program of a configuration over a mesh, compiled down to the H100's own instructions.
*peak*: GiB that the compiler plans for the program alone. *plan*: GiB that `--dry_run` tells for
the learner, or the engine's own plan for 80 GB. *device*: all that a device holds meanwhile, the
learner's other trees and one copy of the engine's weights included; "!" is more than 80 GB.

Seconds are bounds from FLOPs, bytes and rates of the data sheet (`chip.py`), never measurements:
*least* is what the model's work needs, *serial* the sum of arithmetic, memory, launches of kernels,
links and host round trips as the program was compiled, *overlapped* the largest of these. MFU
counts the model's FLOPs. Kernels are not tuned on a device here, and tiles are XLA's defaults.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.h100 import derived, simulated, steps, table
from benchmarks.h100.jobs import Job, all_jobs

ROOT = Path(__file__).resolve().parents[2]
WHEELS = Path(sys.prefix) / "h100"
PROGRAM_SECONDS = 900.0  # in which a program has to be compiled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where the rows are written, job by job")
    parser.add_argument("--only", default="", help="words of the jobs; FILE keeps the other rows")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder with the compiler")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    args = parser.parse_args()
    if not (args.wheels / "jax_plugins").is_dir():
        sys.exit(f"no compiler for CUDA in {args.wheels}: run make h100, which installs it there")
    since = time.perf_counter()
    jobs = [job for job in all_jobs() if all(word in str(job) for word in args.only.split())]
    rows = _kept(args.json, jobs) if args.only and args.json else []
    with ThreadPoolExecutor(args.jobs) as pool:
        for future in as_completed([pool.submit(_rows_alone, job, args.wheels) for job in jobs]):
            rows = sorted([*rows, *future.result()], key=_place)
            if args.json:
                args.json.write_text(derived.text(derived.table(rows)))
    print("\n".join(table.lines(rows)))
    print("\n" + "\n".join(steps.lines(list(steps.steps(rows)))))
    print("\nrlboost_jax/simulator assumes\n  " + "\n  ".join(simulated.rates()))
    print("\n".join(table.comparison_lines(simulated.comparison(rows))))
    minutes, failed = (time.perf_counter() - since) / 60, sum("failed" in row for row in rows)
    print(f"\n{len(rows)} programs, {failed} of which failed; {minutes:.1f} minutes")


def _kept(path: Path, anew: list[Job]) -> list[dict[str, Any]]:
    """Rows of an earlier table that are not made anew."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    kept = {str(job) for job in all_jobs() if job not in anew}
    return [row for row in rows if row["job"] in kept]


class Compiler:
    """A process that has imported what compiles, and forks one for each job.

    Args:
        wheels: folder with the compiler.
        seconds: in which a program has to be compiled.
    """

    def __init__(self, wheels: Path, *, seconds: float = PROGRAM_SECONDS) -> None:
        self._seconds = seconds
        path = [str(ROOT), str(ROOT / "kernels"), str(wheels), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "JAX_PLATFORMS": "cpu",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        self._start = partial(
            subprocess.Popen,
            [sys.executable, "-m", "benchmarks.h100.worker"],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # With its forks. Linux gives each session the same share of a core (autogroups), and
            # so takes no notice of `nice` between sessions.
            process_group=0,
        )
        self._process: subprocess.Popen[str] | None = None
        self._last: list[str] = []  # that it has written to standard error
        self._late = False

    @property
    def last_words(self) -> str:
        if self._late:
            return f"no program in {self._seconds:g} s"
        return self._last[-1] if self._last else "it says nothing"

    def messages(self, job: Job, skipped: list[str]) -> Iterator[dict[str, Any]]:
        """What is said as a job is compiled, to its end, or to that of the process."""
        if self._process is None:
            self._process = self._start()
            self._reader = threading.Thread(
                target=_keep_last, args=(self._process.stderr, self._last)
            )
            self._reader.start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        self._last.clear()
        self._late = False
        timer = self._timer()
        over = False
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended; so do its lines
                process.stdin.write(json.dumps([asdict(job), skipped]) + "\n")
                process.stdin.flush()
            for line in process.stdout:
                if line.startswith("{"):
                    timer.cancel()
                    message = json.loads(line)
                    if over := "over" in message:
                        return
                    timer = self._timer()
                    yield message
        finally:
            timer.cancel()
            if not over:
                self.close()

    def _timer(self) -> threading.Timer:
        assert self._process is not None
        timer = threading.Timer(self._seconds, self._give_up, (self._process,))
        timer.start()
        return timer

    def _give_up(self, process: "subprocess.Popen[str]") -> None:
        self._late = True
        _kill(process)

    def close(self) -> None:
        """End the process; the next job starts another."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            self._reader.join()
            with contextlib.suppress(BrokenPipeError), process:
                pass  # its streams are closed, and it is waited for


def _kill(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def rows_of(job: Job, compiler: Compiler) -> list[dict[str, Any]]:
    """Measure all programs of a job; one that crashes the compiler leaves the others alone."""
    rows: dict[str, dict[str, Any]] = {}
    print(f"compiling {job} …", file=sys.stderr, flush=True)
    while True:
        current, done = "", False
        for message in compiler.messages(job, sorted(rows)):
            current = message.get("compiling", current)
            done |= message.get("done", False)
            if row := message.get("row"):
                rows[row["program"]] = row
        if done:
            break
        compiler.close()  # all that it has said is read then
        reason = f"the compiler's process ended: {compiler.last_words}"[:300]
        rows[current] = {"program": current or "start", "failed": reason}
        if not current:
            break
    mesh = ",".join(map(str, job.mesh)) if job.part == "learner" else ""
    common = {"config": job.config, "part": job.part, "job": str(job)}
    return [{**common, "mesh": mesh or str(r.get("devices", "")), **r} for r in rows.values()]


def _rows_alone(job: Job, wheels: Path) -> list[dict[str, Any]]:
    with contextlib.closing(Compiler(wheels)) as compiler:
        return rows_of(job, compiler)


def _keep_last(stream: Any, lines: list[str]) -> None:
    for line in stream:
        if line.strip():
            lines[:] = [line.strip()]


def _place(row: dict[str, Any]) -> int:
    """Index of a row's job: rows of one job stay in their order."""
    return next(place for place, job in enumerate(all_jobs()) if str(job) == row["job"])


if __name__ == "__main__":
    main()
