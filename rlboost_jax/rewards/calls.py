"""One call in a process of its own: made, limited, seeded, and ended with all that it starts."""

import contextlib
import ctypes
import hashlib
import os
import random
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

from rlboost_jax.rewards.frames import Job, Returned, Setup, send
from rlboost_jax.rewards.functions import Call
from rlboost_jax.settings.rewards import RewardConfig

NO_OUTCOME: Final = "wrote what is no outcome"
_OUTCOME_BYTES: Final = 4096  # of one response
_PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


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


def _judge(setup: Setup, calls: Sequence[Call], job: Job, outlet: int, parent: int) -> NoReturn:
    """In the child: never returns, whatever the functions do."""
    try:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(0, 2)  # a line for every response would bury the run's own
        os.setsid()
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # which has ended before that
            os._exit(0)
        _limit_memory(setup.memory_mb)
        _seed(setup.seed, job)
        for call in calls:
            send(outlet, Returned(found=call(job)))
    finally:  # no exception, exit or signal of the functions' goes further than this
        os._exit(0)


def _limit_memory(megabytes: int) -> None:
    """Allow so much memory beyond what is mapped now (the functions' modules). Linux only."""
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


@contextlib.contextmanager
def all_ended() -> Iterator[None]:
    """Whatever happens within, a request to end for one: what was started goes with it."""
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is being done
        end_orphans()


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


def prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError):  # not Linux
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
