"""A reward worker: judges one job at a time, each in a process of its own.

`python -m rlboost_jax.rewards.worker`, started by `pool.py`. It imports the functions once and
then forks for every job, a response or a group of them: a crash, a hang, endless allocation or a
changed global costs that job only, and no call can see what the one before has left behind, so
that results depend on neither the order nor the number of workers. It has no thread of its own.
Jobs that wait side by side are `concurrent_worker.py`'s.
"""

import gc
import os
import signal
from collections.abc import Sequence

import msgspec

from rlboost_jax.host.interrupts import raise_at
from rlboost_jax.rewards.calls import (
    NO_OUTCOME,
    PR_SET_CHILD_SUBREAPER,
    all_ended,
    end_orphans,
    forked,
    how_it_ended,
    most_bytes,
    prctl,
    took_longer,
)
from rlboost_jax.rewards.concurrent_worker import serve
from rlboost_jax.rewards.frames import (
    Found,
    FrameTooLong,
    Job,
    Outcomes,
    Ready,
    Returned,
    Setup,
    all_failed,
    receive,
    send,
)
from rlboost_jax.rewards.functions import Call, Unusable, load
from rlboost_jax.settings.rewards import RewardConfig
from rlboost_jax.supervision import exits


def main() -> None:
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # functions may print and read as they like
        os.dup2(nowhere, standard)
    raise_at([signal.SIGTERM], lambda number: SystemExit(exits.by_signal(number)))
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a call leaves behind becomes ours, to be ended
    setup = receive(requests, Setup)
    if setup is None:
        return
    os.environ["RLBOOST_SANDBOX"] = "required" if setup.sandbox_required else "best_effort"
    calls = []
    for reward in setup.functions:
        try:
            calls.append(load(reward, setup.columns))
        except Unusable as error:
            send(replies, Ready(mistake=f"rewards.functions {reward.shown_as!r} {error}"))
            return
    gc.collect()
    gc.freeze()  # else the first collection of every child copies all that was imported
    send(replies, Ready())
    with all_ended():
        if setup.at_once:
            serve(requests, replies, setup, calls)
            return
        while (job := receive(requests, Job)) is not None:
            send(replies, Outcomes(outcomes=judged(setup, calls, job), number=job.number))


def judged(setup: Setup, calls: Sequence[Call], job: Job) -> tuple[Found, ...]:
    """What each function that the job asks says; a new process goes on where one had to be ended.

    They stand in the order of the setup.
    """
    asked = [i for i, function in enumerate(setup.functions) if function.per == job.per]
    found: list[Found] = []
    while len(found) < len(asked):
        left = asked[len(found) :]
        functions, their_calls = [setup.functions[i] for i in left], [calls[i] for i in left]
        found.extend(_in_child(setup, functions, their_calls, job))
    return tuple(found)


def _in_child(
    setup: Setup, functions: Sequence[RewardConfig], calls: Sequence[Call], job: Job
) -> list[Found]:
    """Of the functions up to the first that the process did not survive, at least one."""
    child, inlet = forked(setup, calls, job)
    found: list[Found] = []
    why = "the worker was ended"
    try:
        why = _heard(inlet, functions, job, found)
    finally:  # also when this worker itself is asked to end
        os.close(inlet)
        status = _end(child, at_once=bool(why))
    if len(found) < len(functions):
        found.append(all_failed(job, why or how_it_ended(status)))
    return found


def _heard(inlet: int, functions: Sequence[RewardConfig], job: Job, found: list[Found]) -> str:
    """Append what comes through the pipe; returns why the rest is not waited for, "" at its end."""
    for function in functions:
        limit = function.time_limit_seconds
        try:
            returned = receive(inlet, Returned, timeout=limit, max_bytes=most_bytes(job))
        except TimeoutError:
            return took_longer(function)
        except (FrameTooLong, msgspec.MsgspecError):
            return NO_OUTCOME
        if returned is None:
            return ""
        if len(returned.found) != len(job.responses):
            return NO_OUTCOME
        found.append(returned.found)
    return ""


def _end(child: int, *, at_once: bool) -> int:
    """Reap the child, and whatever it has started; returns its wait status."""
    if at_once:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    end_orphans()
    return status


if __name__ == "__main__":
    main()
