"""The child process: python -m rlboost_jax.qualification.trial, with a `Spec` on standard input.

It writes a line of JSON before it touches a candidate and another with what came of it, so that
the parent knows which one took the process down. After an exception it ends: on a GPU what runs
next in the same process may fail for the same error, and the parent starts a new one for the rest.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from typing import Any, Final

import jax
import msgspec

from rlboost_jax.qualification.checks import tried
from rlboost_jax.qualification.problem import Problem
from rlboost_jax.qualification.problems import problem_of
from rlboost_jax.qualification.records import Message, Spec

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
ORPHAN_SECONDS: Final = 60.0  # after its limit, a child whose parent is gone ends by itself


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    serve(spec, problem_of(spec.problem, spec.shape))


def serve(spec: Spec, problem: Problem) -> None:
    """Try the candidates in order."""
    _end_with_parent()
    say = _Channel().say
    faulthandler.enable()
    _end_in_time(spec)
    device = jax.devices()[0]
    say(Message(device=(device.platform, device.device_kind)))
    if device.platform == "cpu" and not spec.on_cpu:
        return
    candidates = {candidate.name: candidate for candidate in problem.candidates}
    for name in spec.candidates:
        _end_in_time(spec)
        say(Message(trying=name))
        trial = tried(problem, candidates[name], invariant=spec.invariant)
        say(Message(trial=trial))
        if trial.outcome == "raised":
            return


class _Channel:
    """Standard output, for messages alone: what libraries print goes to standard error."""

    def __init__(self) -> None:
        self._file: Any = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def say(self, message: Message) -> None:
        self._file.write(msgspec.json.encode(message) + b"\n")


def _end_with_parent() -> None:
    """One that hangs would hold the device for as long as the machine runs. Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_in_time(spec: Spec) -> None:
    """The parent ends a child that takes too long; elsewhere this is for one that has none."""
    faulthandler.dump_traceback_later(spec.seconds + ORPHAN_SECONDS, exit=True)


if __name__ == "__main__":
    main()
