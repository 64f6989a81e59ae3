"""A reward worker: judges one job at a time, each in a process of its own.

`python -m rlboost_jax.rewards.worker`, started by `pool.py`. It imports the functions once and
then forks for every job, a response or a group of them: a crash, a hang, endless allocation or a
changed global costs that job only, and no call can see what the one before has left behind, so
that results depend on neither the order nor the number of workers. It has no thread of its own.
Jobs that wait side by side are `at_once.py`'s.
"""

import contextlib
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

NO_OUTCOME: Final = "wrote what is no outcome"
_OUTCOME_BYTES: Final = 4096  # of one response
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
    if setup.at_once:
        from rlboost_jax.rewards.at_once import serve

        serve(requests, replies, setup, calls)
        return
    while (job := receive(requests, Job)) is not None:
        send(replies, Outcomes(outcomes=judged(setup, calls, job), number=job.number))


def _leave(number: int, frame: object) -> NoReturn:
    """SIGTERM: end what runs, and this process."""
    raise SystemExit(0)


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


def forked(setup: Setup, calls: Sequence[Call], job: Job) -> tuple[int, int]:
    """A process that asks the functions, one after the other.

    Returns:
        Its id, and a pipe with a `Returned` of each.
    """
    inlet, outlet = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(inlet)
        _judge(setup, calls, job, outlet, parent)
    os.close(outlet)
    return child, inlet


def most_bytes(job: Job) -> int:
    """That a function has reason to say."""
    return _OUTCOME_BYTES * len(job.responses)


def took_longer(function: RewardConfig) -> str:
    of = " for a group" if function.per == "group" else ""
    return f"took longer than {function.time_limit_seconds:g} s{of}"


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
            send(outlet, Returned(found=call(job)))
    finally:  # no exception, exit or signal of the functions' goes further than this
        os._exit(0)


def _limit_memory(megabytes: int) -> None:
    """Beyond what is mapped already, which is what the functions' modules take. Linux only."""
    try:
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    limit = mapped + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _seed(seed: int, job: Job) -> None:
    """A function that draws random numbers draws the same for the same response, or group."""
    digest = hashlib.blake2b(digest_size=4)
    for part in (str(seed), job.prompt, *(response.completion for response in job.responses)):
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
        end_orphans()
    except SystemExit:  # asked to end in the midst of it
        end_orphans()
        raise
    return status


def end_orphans() -> None:
    """Of a child that is gone; they come to us, and theirs as they go."""
    while True:
        for process in children():
            os.kill(process, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children(proc: str = "/proc") -> list[int]:
    """Of this process, which has one thread; none where no /proc of Linux says so."""
    try:
        with open(f"{proc}/self/task/{os.getpid()}/children") as file:
            return [int(process) for process in file.read().split()]
    except FileNotFoundError:
        return []


def how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return "ended its process"


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError):  # not Linux
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
