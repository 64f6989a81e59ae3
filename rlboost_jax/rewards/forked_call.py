"""One call of reward functions in a process of its own, limited, seeded and cleaned up."""

import contextlib
import hashlib
import os
import random
import resource
import select
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NoReturn

from rlboost_jax.platform.frames import send
from rlboost_jax.platform.process_liveness import end_with_parent
from rlboost_jax.rewards.functions import Call
from rlboost_jax.rewards.reward_frames import Returned, RewardJob, RewardSetup
from rlboost_jax.settings.rewards_config import RewardConfig

NO_OUTCOME: Final = "wrote what is no outcome"
PIPE_CLOSED: Final = "closed its pipe and went on"
_END_SECONDS: Final = 1.0  # for a process to be over once its pipe has closed
_OUTCOME_BYTES: Final = 4096  # of one response


def forked(setup: RewardSetup, calls: Sequence[Call], job: RewardJob) -> tuple[int, int]:
    """Fork a process that calls the functions, one after the other.

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


def most_bytes(job: RewardJob) -> int:
    """Most bytes that a function's outcomes for a job can take."""
    return _OUTCOME_BYTES * len(job.responses)


def took_longer(function: RewardConfig) -> str:
    of = " for a group" if function.per == "group" else ""
    return f"took longer than {function.time_limit_seconds:g} s{of}"


def _judge(
    setup: RewardSetup, calls: Sequence[Call], job: RewardJob, outlet: int, parent: int
) -> NoReturn:
    """Call the functions in the child process; never returns, whatever they do."""
    try:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(0, 2)  # a line for every response would bury the run's own
        os.setsid()
        if not end_with_parent(parent):
            os._exit(0)
        _limit_memory(setup.memory_mb)
        _seed(setup.seed, job)
        for call in calls:
            send(outlet, Returned(found=call(job)))
    finally:  # no exception, exit or signal of the functions' goes further than this
        os._exit(0)


def _limit_memory(megabytes: int) -> None:
    """Limit memory to `megabytes` beyond what is mapped now (the functions' modules).

    Linux only.
    """
    try:
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    limit = mapped + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _seed(seed: int, job: RewardJob) -> None:
    """Seed random numbers, equally for the same response or group."""
    digest = hashlib.blake2b(digest_size=4)
    for part in (str(seed), job.prompt, *(response.completion for response in job.responses)):
        digest.update(f"{len(part)} {part}".encode(errors="surrogatepass"))
    number = int.from_bytes(digest.digest(), "little")
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)


@contextlib.contextmanager
def all_ended() -> Iterator[None]:
    """Kill all started processes at the end of the context, however it ends."""
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is being done
        end_orphans()


def end_orphans() -> None:
    """Kill the descendants of a child that is gone: they become children of this process."""
    while True:
        for process in children():
            os.kill(process, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children(proc: str = "/proc") -> list[int]:
    """Process ids of this process's children; it has one thread. Empty without Linux's /proc."""
    try:
        with open(f"{proc}/self/task/{os.getpid()}/children") as file:
            return [int(process) for process in file.read().split()]
    except FileNotFoundError:
        return []


def ends_by_itself(child: int) -> bool:
    """Whether a process whose pipe has closed is over in a moment; True if nobody can say."""
    poll = select.poll()
    try:
        process = os.pidfd_open(child)
    except (AttributeError, OSError):  # not Linux
        return True
    poll.register(process, select.POLLIN)
    try:
        return bool(poll.poll(1000 * _END_SECONDS))
    finally:
        os.close(process)


def end_call(child: int, *, at_once: bool, others: Collection[int] = ()) -> int:
    """Reap the process of a call with everything it started; returns its wait status.

    Args:
        at_once: kill it; else it has ended by itself.
        others: processes of other calls, which stay.
    """
    if at_once:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while left := [process for process in children() if process not in others]:
        for process in left:
            os.kill(process, signal.SIGKILL)
        for process in left:
            os.waitpid(process, 0)
    return status


def how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return "ended its process"
