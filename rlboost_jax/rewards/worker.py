"""A reward worker: judges one response at a time, each in a process of its own.

`python -m rlboost_jax.rewards.worker`, started by `pool.py`. It imports the functions once and
then forks for every response: a crash, a hang, endless allocation or a changed global costs that
response only, and no call can see what the one before has left behind, so that results depend
on neither the order nor the number of workers. It has no thread of its own.
"""

import ctypes
import gc
import hashlib
import os
import random
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import msgspec

from rlboost_jax.rewards.frames import (
    FrameTooLong,
    Job,
    Outcome,
    Outcomes,
    Ready,
    Setup,
    receive,
    send,
)
from rlboost_jax.rewards.functions import Call, Unusable, load
from rlboost_jax.settings.rewards import RewardConfig

_OUTCOME_BYTES: Final = 4096
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def main() -> None:
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # functions may print and read as they like
        os.dup2(nowhere, standard)
    signal.signal(signal.SIGTERM, _leave)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a call leaves behind becomes ours, to be ended
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
    while (job := receive(requests, Job)) is not None:
        send(replies, Outcomes(outcomes=judged(setup, calls, job)))


def _leave(number: int, frame: object) -> NoReturn:
    """SIGTERM: end what runs, and this process."""
    raise SystemExit(0)


def judged(setup: Setup, calls: Sequence[Call], job: Job) -> tuple[Outcome, ...]:
    """What each function says, in order; a new process goes on where one had to be ended."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(calls):
        first = len(outcomes)
        outcomes.extend(_in_child(setup, setup.functions[first:], calls[first:], job))
    return tuple(outcomes)


def _in_child(
    setup: Setup, functions: Sequence[RewardConfig], calls: Sequence[Call], job: Job
) -> list[Outcome]:
    """Outcomes up to the first function that the process did not survive, at least one."""
    inlet, outlet = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(inlet)
        _judge(setup, calls, job, outlet, parent)
    os.close(outlet)
    outcomes: list[Outcome] = []
    why = "the worker was ended"
    try:
        why = _heard(inlet, functions, outcomes)
    finally:  # also when this worker itself is asked to end
        os.close(inlet)
        status = _end(child, at_once=bool(why))
    if len(outcomes) < len(functions):
        outcomes.append(Outcome(fault=why or _how_it_ended(status)))
    return outcomes


def _heard(inlet: int, functions: Sequence[RewardConfig], outcomes: list[Outcome]) -> str:
    """Append what comes through the pipe; returns why the rest is not waited for, "" at its end."""
    for function in functions:
        limit = function.time_limit_seconds
        try:
            outcome = receive(inlet, Outcome, timeout=limit, max_bytes=_OUTCOME_BYTES)
        except TimeoutError:
            return f"took longer than {limit:g} s"
        except (FrameTooLong, msgspec.MsgspecError):
            return "wrote what is no outcome"
        if outcome is None:
            return ""
        outcomes.append(outcome)
    return ""


def _judge(setup: Setup, calls: Sequence[Call], job: Job, outlet: int, parent: int) -> NoReturn:
    """In the child: never returns, whatever the functions do."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(0, 2)  # a line for every response would bury the run's own
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # which has ended before that
            os._exit(0)
        _limit_memory(setup.memory_mb)
        _seed(setup.seed, job)
        for call in calls:
            send(outlet, call(job))
    finally:  # no exception, exit or signal of the functions' goes further than this
        os._exit(0)


def _limit_memory(megabytes: int) -> None:
    """Beyond what is mapped already, which is what the functions' modules take."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit = mapped + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _seed(seed: int, job: Job) -> None:
    """A function that draws random numbers draws the same for the same response."""
    digest = hashlib.blake2b(digest_size=4)
    for part in (str(seed), job.prompt, job.completion):
        digest.update(f"{len(part)} {part}".encode(errors="surrogatepass"))
    number = int.from_bytes(digest.digest(), "little")
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)


def _end(child: int, *, at_once: bool) -> int:
    """Reap the child, and whatever it has started; returns its wait status."""
    try:
        if at_once:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        _end_orphans()
    except SystemExit:  # asked to end in the midst of it
        _end_orphans()
        raise
    return status


def _end_orphans() -> None:
    """Of a child that is gone; they come to us, and theirs as they go."""
    while True:
        for process in _children():
            os.kill(process, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Of this process, which has one thread; from /proc of Linux."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(process) for process in file.read().split()]


def _how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return "ended its process"


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
