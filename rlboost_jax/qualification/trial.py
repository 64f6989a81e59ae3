"""The child process: python -m rlboost_jax.qualification.trial, with a `Spec` on standard input.

It writes a line of JSON before it touches a candidate and another with what came of it, so that
the parent knows which one took the process down. After an exception it ends: on a GPU what runs
next in the same process may fail for the same error, and the parent starts a new one for the rest.
"""

import faulthandler
import os
import sys
from typing import Any, Final

import jax
import msgspec

from rlboost_jax.platform.process_liveness import end_with_parent
from rlboost_jax.qualification.checks import tried
from rlboost_jax.qualification.known_problems import problem_of
from rlboost_jax.qualification.problem import TrialProblem
from rlboost_jax.qualification.trial_records import Spec, TrialLine

ORPHAN_SECONDS: Final = 60.0  # after its limit, a child whose parent is gone ends by itself


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    serve(spec, problem_of(spec.problem, spec.shape))


def serve(spec: Spec, problem: TrialProblem) -> None:
    """Try the candidates in order."""
    end_with_parent(os.getppid())  # a trial that hangs would hold the device for good
    say = _Channel().say
    faulthandler.enable()
    _end_in_time(spec)
    device = jax.devices()[0]
    say(TrialLine(device=(device.platform, device.device_kind)))
    if device.platform == "cpu" and not spec.on_cpu:
        return
    candidates = {candidate.name: candidate for candidate in problem.candidates}
    for name in spec.candidates:
        _end_in_time(spec)
        say(TrialLine(trying=name))
        trial = tried(problem, candidates[name], invariant=spec.invariant)
        say(TrialLine(trial=trial))
        if trial.outcome == "raised":
            return


class _Channel:
    """Standard output, for messages alone: what libraries print goes to standard error."""

    def __init__(self) -> None:
        self._file: Any = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def say(self, message: TrialLine) -> None:
        self._file.write(msgspec.json.encode(message) + b"\n")


def _end_in_time(spec: Spec) -> None:
    """End this process if it takes too long and has no parent left to end it."""
    faulthandler.dump_traceback_later(spec.seconds + ORPHAN_SECONDS, exit=True)


if __name__ == "__main__":
    main()
