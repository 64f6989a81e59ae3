"""Candidates tried in child processes: whatever one of them does, this process goes on.

One child tries all candidates in order. Where it ends or has to be ended, that is what came of the
candidate it was at, and a new child tries those after it.

The child shares the device with its parent. It takes the device's memory as it needs it,
not three quarters of it in advance, so that it fits beside a process that did. Where only one
process may use the device (compute mode "exclusive process") it must run before that process first
touches it, which `engine_start.py` sees to; otherwise it does not start, which is a result, too.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Final

import msgspec

from rlboost_jax.qualification.kernel_choice import remaining
from rlboost_jax.qualification.trial_records import (
    KernelVerdict,
    Outcome,
    Spec,
    Trial,
    TrialLine,
    one_line,
)

CHILD: Final = (sys.executable, "-m", "rlboost_jax.qualification.trial")
TRIAL_SECONDS: Final = 180.0  # for a candidate: to compile it, to check it and to time it
START_SECONDS: Final = 180.0  # for a child: imports, and the first use of the device
_END_SECONDS: Final = 10.0  # for a process that was killed to be gone
_READ_BYTES: Final = 65536


@dataclass(kw_only=True)
class _Report:
    """Messages of one child so far."""

    platform: str = ""
    device: str = ""
    trying: str = ""  # without a trial so far
    trials: list[Trial] = field(default_factory=list)
    outcome: Outcome = "crashed"  # how it ended, if something was left
    reason: str = ""

    def hear(self, message: TrialLine) -> None:
        if message.device is not None:
            self.platform, self.device = message.device
        if message.trying is not None:
            self.trying = message.trying
        if message.trial is not None:
            self.trials.append(message.trial)
            self.trying = ""


def verdict_of(
    spec: Spec,
    *,
    command: Sequence[str] = CHILD,
    start_seconds: float = START_SECONDS,
    selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector,
    clock: Callable[[], float] = time.monotonic,
) -> KernelVerdict:
    """Try all candidates of a spec, in its order.

    Args:
        command: of a child, which reads a spec and writes messages.
        start_seconds: until it must have begun with its first candidate.
        selector: waits for what it writes.
        clock: seconds.
    """
    listen = partial(_listen, selector=selector, clock=clock)
    platform, device = "", ""
    trials: list[Trial] = []
    while left := remaining(spec.candidates, trials):
        asked = msgspec.structs.replace(spec, candidates=left)
        report = _of_child(asked, command, start_seconds, listen)
        platform, device = report.platform or platform, report.device or device
        trials += report.trials
        at: tuple[str, ...] = (report.trying,) if report.trying else ()
        if not at and not report.trials:  # another child would come no further
            at, report.reason = left, f"no process to try it in: {report.reason}"
        trials += [
            Trial(candidate=name, outcome=report.outcome, reason=one_line(report.reason))
            for name in at
        ]
    return KernelVerdict(platform=platform, device=device, trials=tuple(trials))


def _of_child(
    spec: Spec, command: Sequence[str], start_seconds: float, listen: Callable[..., bool]
) -> _Report:
    report = _Report()
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # compilers that it starts end with it
            )
        except OSError as error:
            report.reason = f"{command[0]}: {error.strerror}"
            return report
        in_time = False
        try:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(spec))
                process.stdin.close()
            in_time = listen(process.stdout, report, spec.seconds, start_seconds)
        finally:
            code = _ended(process, at_once=not in_time)
        if not in_time:
            report.outcome = "hung"
            limit = spec.seconds if report.trying else start_seconds
            report.reason = f"no result after {limit:g} s"
        else:
            report.reason = _described(code, _last_line(errors))
    return report


def _listen(
    stream: IO[bytes],
    report: _Report,
    seconds: float,
    start_seconds: float,
    *,
    selector: Callable[[], selectors.BaseSelector],
    clock: Callable[[], float],
) -> bool:
    """Read a child's messages to the end; False if it is silent for too long."""
    unread, deadline = b"", clock() + start_seconds
    with selector() as waiting:
        waiting.register(stream, selectors.EVENT_READ)
        while True:
            if not waiting.select(max(0.0, deadline - clock())):
                return False
            block = os.read(stream.fileno(), _READ_BYTES)
            if not block:
                return True
            *lines, unread = (unread + block).split(b"\n")
            for line in lines:
                try:
                    report.hear(msgspec.json.decode(line, type=TrialLine))
                except msgspec.DecodeError:
                    continue  # not ours
                if report.trying:
                    deadline = clock() + seconds


def _ended(process: subprocess.Popen[bytes], *, at_once: bool) -> int | None:
    """Wait for a child and its descendants to end, and return its code; None if it cannot be ended.

    Args:
        at_once: or in its own time, if that is short: it has closed its output.
    """
    assert process.stdout is not None
    process.stdout.close()
    if not at_once:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_END_SECONDS)
    return None  # the driver holds it


def _described(code: int | None, last: str) -> str:
    if code is None:
        return "it cannot be ended"
    if code < 0:
        known = -code in set(signal.Signals)
        name = signal.Signals(-code).name if known else f"signal {-code}"
        return name + (f": {last}" if last else "")
    return f"exit code {code}" + (f": {last}" if last else "")


def _last_line(errors: IO[bytes]) -> str:
    """Last line of standard error; of a crash report the first, which names the signal."""
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    return (fatal or lines or [""])[-1]
