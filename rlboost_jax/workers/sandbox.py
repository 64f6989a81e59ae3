"""Sandbox for programs of the policy: a process that can only compute.

What contains them is in `sandbox_child.py`, which also finds out whether it does.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from rlboost_jax.workers import apart, sandbox_child
from rlboost_jax.workers.apart import stand_ins

SECONDS: Final = 6.0  # for all tests of a program, unless its reward says otherwise
MEMORY_MB: Final = 512  # the same
OUTPUT_BYTES: Final = 256 * 2**10  # most that a program may print
_TROUBLE_BYTES: Final = 4096  # of standard error that are looked at
_SCRIPT: Final = Path(sandbox_child.__file__)
_APART: Final = {
    name: (Path(__file__).parent / "apart" / f"{name}.py").read_text(encoding="utf-8")
    for name in ("plain_values", "stand_ins", "known_names", "program_process", "verdict_process")
}
_OF_BOTH: Final = ("plain_values",)
_OF_TESTS: Final = (*_OF_BOTH, "stand_ins", "known_names")
_NAMES: Final = {
    "network": "the network",
    "processes": "other processes",
    "files": "the host's files",
}


class NotContained(RuntimeError):
    """A program could do more than compute; it was not run."""


class NotStarted(RuntimeError):
    """The process of a program ended or stalled before it came to the program."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    completed: bool  # came to its end in time, without an exception or an exit of its own
    output: str
    timed_out: bool = False  # it was ended, since its time was over


def run_contained(
    program: str,
    *,
    stdin: str = "",
    seconds: float,
    memory_mb: int,
    required: bool,
    script: Path = _SCRIPT,
    most_bytes: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_AS)[1],
) -> Ran:
    """Run Python source, for `seconds` at most.

    A program may take its process over and fake its completion, so `completed` cannot be trusted.
    Judge a program by its output, or by `passes_apart`.

    Args:
        required: do not run it where something of `sandbox_child.py` does not hold here.
        script: `sandbox_child.py`.
        most_bytes: of memory that this process may have.

    Raises:
        NotContained
        NotStarted: nothing is known of the program, since not a line of it ran.
    """
    _check_memory(memory_mb, most_bytes())
    limits = _Limits(seconds=seconds, memory_mb=memory_mb, required=required, script=script)
    with _started(program, stdin, limits) as running:
        return running.ended(seconds)


def passes_apart(
    program: str,
    test: str,
    *,
    seconds: float,
    memory_mb: int,
    required: bool,
    script: Path = _SCRIPT,
) -> bool:
    """Whether a test, Python source that raises where a program is wrong, holds of the program.

    Each has a process of its own, and both are contained. The verdict is the exit code of the
    test's, which the program cannot reach; what it answers there is data (`apart/`).

    Raises:
        NotContained, NotStarted: as `run_contained`.
        ValueError: the test gives the program what cannot be given to another process.
    """
    limits = _Limits(seconds=seconds, memory_mb=memory_mb, required=required, script=script)
    with contextlib.ExitStack() as open_still:
        lines = _line(open_still), _line(open_still)
        processes = []
        for name, key, text, files, modules in (
            ("program_process", "program", program, (lines[0][0], lines[1][1]), _OF_BOTH),
            ("verdict_process", "test", test, (lines[1][0], lines[0][1]), _OF_TESTS),
        ):
            numbers = [file.fileno() for file in files]
            stdin = json.dumps({key: text, "files": numbers})
            processes.append(
                open_still.enter_context(_started(_APART[name], stdin, limits, numbers, modules))
            )
        for file in (*lines[0], *lines[1]):
            file.close()  # else neither process would hear of the other's end
        its_program, its_test = processes
        ran = its_test.ended(seconds)
        its_program.ended(0.0)  # raises where not a line of the program ran
        if its_test.code == stand_ins.UNSENDABLE:
            raise ValueError(its_test.last_words())
    return ran.completed


@dataclass(frozen=True, kw_only=True)
class _Limits:
    seconds: float
    memory_mb: int
    required: bool
    script: Path


class _Contained:
    """A process that `sandbox_child.py` contains, and its files."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        report: IO[bytes],
        output: IO[bytes],
        trouble: IO[bytes],
    ) -> None:
        self._process = process
        self._report, self._output, self._trouble = report, output, trouble
        self.code: int | None = None  # exit code; None: its time was over

    def ended(self, seconds: float) -> Ran:
        """Wait for the process to end, or kill it.

        Raises:
            NotContained, NotStarted: as `run_contained`.
        """
        try:
            self.code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.code = None
        finally:
            self._process.kill()
            self._process.wait()
        self._output.seek(0)
        text = self._output.read(OUTPUT_BYTES).decode(errors="replace")
        self._report.seek(0)
        reported = self._report.read(_TROUBLE_BYTES)
        started = reported == sandbox_child.STARTED
        if self.code == sandbox_child.NOT_CONTAINED and not started:
            names = reported.decode(errors="replace").split(", ")
            raise NotContained(
                f"a program would reach {' and '.join(_NAMES.get(n, n) for n in names)} "
                "on this host; run on Linux 5.13 or later, x86_64 or aarch64, with Landlock and "
                "seccomp, or set rewards.sandbox to 'best_effort'"
            )
        if not started:
            why = (
                f"no start in {seconds:g} s"
                if self.code is None
                else f"exit code {self.code}, {self.last_words()!r}"
            )
            raise NotStarted(f"a program's process did not come to run it: {why}")
        completed = self.code == sandbox_child.ENDED
        return Ran(completed=completed, output=text, timed_out=self.code is None)

    def last_words(self) -> str:
        """Last line of its standard error."""
        self._trouble.seek(0)
        text = self._trouble.read(OUTPUT_BYTES).decode(errors="replace")
        return text.strip().rpartition("\n")[2]


@contextlib.contextmanager
def _started(
    program: str,
    stdin: str,
    limits: _Limits,
    files: Sequence[int] = (),
    modules: Sequence[str] = (),
) -> Iterator[_Contained]:
    """Start a contained process.

    Args:
        files: that it gets besides, by number.
        modules: of `apart/` that it may import, each after those that it imports.
    """
    header = {
        "limits": {
            "memory_bytes": limits.memory_mb * 2**20,
            "cpu_seconds": max(1, int(limits.seconds) + 1),
            "output_bytes": OUTPUT_BYTES,
        },
        "required": limits.required,
        "modules": {f"{apart.__name__}.{name}": _APART[name] for name in modules},
        "program": program,
    }
    with (
        _file() as head,
        _file() as report,
        _file() as source,
        _file() as output,
        _file() as trouble,
    ):
        head.write(json.dumps(header).encode())
        head.seek(0)
        source.write(stdin.encode(errors="surrogatepass"))
        source.seek(0)
        own = (head.fileno(), report.fileno())
        process = subprocess.Popen(
            # Not -I, which would have it ignore PYTHONHASHSEED along with all else of its kind.
            [sys.executable, "-P", "-s", "-B", str(limits.script), *map(str, own)],
            pass_fds=(*own, *files),
            stdin=source,
            stdout=output,
            stderr=trouble,
            env={"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
            cwd="/",
        )
        try:
            yield _Contained(process, report, output, trouble)
        finally:
            process.kill()
            process.wait()


def _line(open_still: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Pipe: the end to read from, the end to write to."""
    ends = os.pipe()
    reading, writing = (
        open_still.enter_context(os.fdopen(end, mode, buffering=0))
        for end, mode in zip(ends, ("rb", "wb"), strict=True)
    )
    return reading, writing


def _file() -> IO[bytes]:
    """Temporary file, in memory if possible.

    A full disk must not be taken for a program that fails to print.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("rlboost-program"), "w+b")
    return tempfile.TemporaryFile()


def _check_memory(memory_mb: int, most: int) -> None:
    """Raise NotStarted if the caller's own limit, which a child cannot raise, is lower."""
    if most != resource.RLIM_INFINITY and memory_mb * 2**20 > most:
        raise NotStarted(
            f"a program may take {memory_mb} MiB (memory_mb), its caller {most // 2**20} "
            "(rewards.memory_mb and its modules); lower the first or raise the second"
        )


def is_required() -> bool:
    """Whether containment is required, as the run's worker has it; True without a worker."""
    return os.environ.get("RLBOOST_SANDBOX", "required") != "best_effort"
