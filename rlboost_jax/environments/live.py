"""Environments that are there, and the process that some of them are in.

What is lost with a process is `Lost`. All of it is called in one event loop.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeVar

from rlboost_jax.environments import frames
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.environments.runner import CallLedger
from rlboost_jax.rewards.frames import Unsendable

_Answer = TypeVar("_Answer", frames.Opened, frames.Taken)
LOOK_SECONDS: Final = 5.0  # most between two questions whether a worker still listens

# Whose fault a failure is: the episode's own environment; that of one of several in a process,
# nobody knows which; or nobody's in there.
Blame = Literal["own", "shared", "outside"]


class LineLike(Protocol):
    """Frames to a worker, such as `processes.Line`."""

    def say(self, message: frames.ToWorker, /) -> None: ...
    def close(self) -> None: ...


class ProcessLike(Protocol):
    """What a worker runs in, such as `processes.Process`.

    Attributes:
        pid: of a child of this process; 0: it is another host's.
    """

    pid: int

    def kill(self) -> None: ...
    async def ended(self) -> None: ...


# Makes the line of a worker: what hears its frames, and what hears once that it is over, with why
# and whether it was ended from outside.
Connect = Callable[[Callable[[frames.FromWorker], None], Callable[[str, bool], None]], LineLike]


class Lost(RuntimeError):
    """An environment is gone. The message says why.

    Attributes:
        for_good: to make it again is of no use.
    """

    def __init__(self, why: str, blame: Blame, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.blame: Blame = blame
        self.for_good = for_good


class Live:
    """One environment, in some process. Asked one thing at a time."""

    def __init__(self, host: "WorkerHost", number: int, ledger: CallLedger) -> None:
        self._host, self._number, self._ledger = host, number, ledger
        self.said: asyncio.Future[Any] | None = None  # what is waited for
        self._lost: Lost | None = None
        self._noting: set[asyncio.Task[None]] = set()

    async def reset(self, example: Mapping[str, Any], seed: int) -> frames.Opened:
        """Raises Lost."""
        message = frames.Reset(episode=self._number, example=dict(example), seed=seed)
        return await self._asked(message, frames.Opened)

    async def take(self, turn: Turn, key: str) -> frames.Taken:
        """Raises Lost."""
        message = frames.GiveTurn(episode=self._number, turn=turn, key=key)
        return await self._asked(message, frames.Taken)

    def close(self) -> None:
        """Whatever is under way is lost with it."""
        self.lose(Lost("it was closed", "outside"))

    async def _asked(
        self, message: frames.Reset | frames.GiveTurn, answer: type[_Answer]
    ) -> _Answer:
        if self._lost is not None:
            raise self._lost
        self.said = asyncio.get_running_loop().create_future()
        try:
            self._host.say(message)
            said = await self.said
        except Unsendable as error:
            raise Lost(str(error), "own", for_good=True) from None
        finally:
            self.said = None
        if not isinstance(said, answer):
            lost = Lost(f"it answered with {type(said).__name__}, not {answer.__name__}", "own")
            self.lose(lost)
            raise lost
        return said

    def hear(self, message: frames.FromWorker) -> None:
        match message:
            case frames.Calling() if len(message.calls) != len(message.lasting):
                self.lose(Lost("it asks about calls without saying which must last", "own"))
            case frames.Calling():
                self._note(self._answer(message))
            case frames.CallEnded():
                self._note(self._ledger.done(message.result))
            case frames.Broken():
                self.lose(Lost(message.why, "own", for_good=message.for_good))
            case _:
                if self.said is not None and not self.said.done():
                    self.said.set_result(message)

    def lose(self, lost: Lost) -> None:
        """It is gone, with whatever is under way."""
        self._lost = lost
        if self.said is not None and not self.said.done():
            self.said.set_exception(lost)
        self._host.forget(self._number)

    @property
    def under_way(self) -> bool:
        return self.said is not None

    async def _answer(self, asked: frames.Calling) -> None:
        known = await self._ledger.begin(asked.calls, asked.lasting)
        self._host.say(frames.Known(episode=self._number, calls=tuple(known)))

    def _note(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._noting.add(task)
        task.add_done_callback(self._noted)

    def _noted(self, task: "asyncio.Task[None]") -> None:
        self._noting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self.said is not None and not self.said.done():
            self.said.set_exception(error)


class WorkerHost:
    """A process that runs episodes: some, or one."""

    def __init__(
        self,
        process: ProcessLike,
        connect: Connect,
        *,
        over: Callable[["WorkerHost"], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            over: called once, when it has ended.
            changed: is called as an episode has left it.
        """
        self.process, self._tell_over, self._changed = process, over, changed
        self.episodes: dict[int, Live] = {}
        self.retired = self.gone = False
        self.alone = False  # it is for one episode
        self._pong = 0
        self._line = connect(self._hear, self._over)

    def say(self, message: frames.ToWorker) -> None:
        if not self.gone:
            self._line.say(message)

    def forget(self, number: int) -> None:
        if self.episodes.pop(number, None) is None:
            return
        self.say(frames.Close(episode=number))
        if (self.retired or self.alone) and not self.episodes:
            self.end()
        self._changed()

    def end(self) -> None:
        """It, whatever it does."""
        if not self.gone:
            self.gone = True
            self._line.close()
            self.process.kill()
            self._tell_over(self)

    async def watch(self, seconds: float) -> None:
        """Kill it where it does not answer for so long: it is frozen, or code that should wait
        does not let others."""
        number, looks = 0, math.ceil(seconds / LOOK_SECONDS)
        while not self.gone:
            number += 1
            self.say(frames.Ping(number=number))
            for _ in range(looks):
                await asyncio.sleep(seconds / looks)
                if self._pong == number or self.gone:
                    break
            else:
                self._over(f"the environment worker did not answer for {seconds:g} s", False)

    def _hear(self, message: frames.FromWorker) -> None:
        if isinstance(message, frames.Pong):
            self._pong = message.number
            return
        if isinstance(message, frames.Taken | frames.Broken) and message.stuck:
            self.retired = True  # a thread that is stuck ends with its process only
        assert not isinstance(message, frames.Ready | frames.Ended)
        if (live := self.episodes.get(message.episode)) is not None:
            live.hear(message)

    def _over(self, why: str, outside: bool) -> None:
        episodes = list(self.episodes.values())
        at_work = [live for live in episodes if live.under_way]
        blame: Blame = "outside" if outside else "own" if len(at_work) == 1 else "shared"
        self.end()
        for live in episodes:
            live.lose(Lost(why, blame if live in at_work else "outside"))
