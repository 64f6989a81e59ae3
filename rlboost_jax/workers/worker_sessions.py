"""Sessions, the workers that they are in, and who is to blame where one is lost.

A worker vanishes in one of three ways, and each session in it is `Lost` with one of three blames:

- outside: somebody ended the worker, its host is gone, or the session asked for nothing just then.
- own: the worker ended by itself, was frozen or late, and this session alone was at work in it.
- shared: the same while several were at work, so nobody knows which of them it was.

All of it is called in one event loop.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec

from rlboost_jax.platform.frames import Unsendable
from rlboost_jax.workers.worker_kind import Ping, Pong, WorkerEnded, WorkerKind, WorkerReady

Answer = TypeVar("Answer", bound=msgspec.Struct)
LOOK_SECONDS: Final = 5.0  # most between two questions whether a worker still listens

Blame = Literal["own", "shared", "outside"]


class LineLike(Protocol):
    """Connection to a worker, such as `worker_process.WorkerConnection`."""

    def say(self, message: msgspec.Struct, /) -> None: ...
    def close(self) -> None: ...


class ProcessLike(Protocol):
    """Process of a worker, such as `worker_process.WorkerProcess`.

    Attributes:
        pid: of a child of this process; 0: it is another host's.
    """

    pid: int

    def stop(self) -> None: ...
    async def ended(self) -> None: ...


# Makes the line of a worker: what hears its frames, and what hears once that it is over, with why
# and whether it was ended from outside.
Connect = Callable[[Callable[[msgspec.Struct], None], Callable[[str, bool], None]], LineLike]


class Lost(RuntimeError):
    """A session is gone. The message says why.

    Attributes:
        for_good: to begin it again is of no use.
    """

    def __init__(self, why: str, blame: Blame, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.blame: Blame = blame
        self.for_good = for_good


class WorkerSession:
    """One piece of work in some worker; requests are made one at a time.

    Args:
        hear: is given its frames; passes those that answer a request on to `answer`.
    """

    def __init__(
        self,
        worker: "PooledWorker",
        number: int,
        hear: "Callable[[WorkerSession, Any], None] | None",
    ) -> None:
        self._worker, self.number = worker, number
        self._hear = hear or WorkerSession.answer
        self._said: asyncio.Future[Any] | None = None  # what is waited for
        self._lost: Lost | None = None

    async def ask(self, message: msgspec.Struct, answer: type[Answer]) -> Answer:
        """Send a request and wait for its answer. Raises Lost."""
        if self._lost is not None:
            raise self._lost
        self._said = asyncio.get_running_loop().create_future()
        try:
            self._worker.say(message)
            said = await self._said
        except Unsendable as error:
            raise Lost(str(error), "own", for_good=True) from None
        finally:
            self._said = None
        if not isinstance(said, answer):
            lost = Lost(f"it answered with {type(said).__name__}, not {answer.__name__}", "own")
            self.lose(lost)
            raise lost
        return said

    def say(self, message: msgspec.Struct) -> None:
        """Send a frame that has no answer. Raises Unsendable."""
        self._worker.say(message)

    def hear(self, message: msgspec.Struct) -> None:
        self._hear(self, message)

    def answer(self, message: msgspec.Struct) -> None:
        """Give the request in progress its answer."""
        if self._said is not None and not self._said.done():
            self._said.set_result(message)

    def fail(self, error: BaseException) -> None:
        """Have the request in progress raise an error."""
        if self._said is not None and not self._said.done():
            self._said.set_exception(error)

    def lose(self, lost: Lost) -> None:
        """Fail the request in progress: the session is gone."""
        self._lost = lost
        self.fail(lost)
        self._worker.forget(self.number)

    def close(self) -> None:
        """End the session; a request in progress is lost."""
        self.lose(Lost("it was closed", "outside"))

    @property
    def under_way(self) -> bool:
        """Whether a request is in progress."""
        return self._said is not None


class PooledWorker:
    """A worker of a pool, with one or several sessions, from the moment that it is ready."""

    def __init__(
        self,
        kind: WorkerKind,
        process: ProcessLike,
        connect: Connect,
        *,
        over: Callable[["PooledWorker"], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            over: called once, when it has ended.
            changed: is called as a session has left it.
        """
        self._kind, self.process = kind, process
        self._tell_over, self._changed = over, changed
        self.sessions: dict[int, WorkerSession] = {}
        self.retired = self.gone = False
        self.alone = False  # it is for one session
        self._pong = 0
        self._line = connect(self._hear, self._over)

    def say(self, message: msgspec.Struct) -> None:
        if not self.gone:
            self._line.say(message)

    def forget(self, number: int) -> None:
        if self.sessions.pop(number, None) is None:
            return
        if self._kind.closing is not None:
            self.say(self._kind.closing(number))
        if (self.retired or self.alone) and not self.sessions:
            self.end()
        self._changed()

    def end(self) -> None:
        """End the process, whatever it does."""
        if not self.gone:
            self.gone = True
            self._line.close()
            self.process.stop()
            self._tell_over(self)

    def end_lost(self, why: str) -> None:
        """End the process, and with it its sessions, which are not to blame."""
        self._over(why, True)

    async def watch(self) -> None:
        """Kill the process if it does not answer in time.

        It is frozen then, or code that should wait does not let others run.
        """
        number, seconds = 0, self._kind.answer_seconds
        looks = math.ceil(seconds / LOOK_SECONDS)
        while not self.gone:
            number += 1
            self.say(Ping(number=number))
            for _ in range(looks):
                await asyncio.sleep(seconds / looks)
                if self._pong == number or self.gone:
                    break
            else:
                self._over(f"the {self._kind.what} did not answer for {seconds:g} s", False)

    def _hear(self, message: msgspec.Struct) -> None:
        if isinstance(message, Pong):
            self._pong = message.number
            return
        assert not isinstance(message, WorkerReady | WorkerEnded)
        if self._kind.is_stuck(message):
            self.retired = True  # a thread that is stuck ends with its process only
        if (session := self.sessions.get(self._kind.session_of(message))) is not None:
            session.hear(message)

    def _over(self, why: str, outside: bool) -> None:
        sessions = list(self.sessions.values())
        at_work = [session for session in sessions if session.under_way]
        blame: Blame = "outside" if outside else "own" if len(at_work) == 1 else "shared"
        self.end()
        for session in sessions:
            session.lose(Lost(why, blame if session in at_work else "outside"))
